"""What other gateways do: they make the next prompt of text. Counts the conversations in which that loses tokens."""

from __future__ import annotations

from collections.abc import Sequence

from callsheet.benchmarks.gateway.check import EngineCall
from callsheet.benchmarks.gateway.plan import PlannedConversation
from callsheet.gateway.chat import Message
from callsheet.gateway.conversations.renderer import Renderer
from tokenizers import Tokenizer


class Controls:
    """Two of them, each told of every conversation.

    Attributes:
        retokenized: Conversations in which the tokens of a call differ once their text is tokenised again. Nothing else
            is changed: no template is at work.
        rendered_anew: Conversations in which a next prompt lacks tokens of the call before it, if all messages are
            rendered by the template. It is given each reply whole, with the reasoning that most harnesses drop.
    """

    def __init__(self, renderer: Renderer, tokenizer: Tokenizer) -> None:
        self.retokenized = 0
        self.rendered_anew = 0
        self._renderer = renderer
        self._tokenizer = tokenizer

    def add(self, plan: PlannedConversation, whole: Sequence[Sequence[Message]], calls: Sequence[EngineCall]) -> None:
        """Counts a conversation.

        Args:
            plan: Which one.
            whole: The messages of each call, with its reply as it came.
            calls: What the engine saw and sampled.
        """
        continued = sorted({call.after for call in plan.calls if call.after is not None})
        self.retokenized += any(self._changes(calls[place].prompt + calls[place].reply) for place in continued)
        self.rendered_anew += any(
            self._loses(plan, whole, calls, place) for place, call in enumerate(plan.calls) if call.after is not None
        )

    def _changes(self, tokens: tuple[int, ...]) -> bool:
        text = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids) != tokens

    def _loses(
        self,
        plan: PlannedConversation,
        whole: Sequence[Sequence[Message]],
        calls: Sequence[EngineCall],
        place: int,
    ) -> bool:
        after = plan.calls[place].after
        if after is None:
            return False
        said = whole[place][len(whole[after]) : -1]
        known = calls[after].prompt + calls[after].reply
        return self._renderer.render([*whole[after], *said], plan.tools, {})[: len(known)] != known
