"""A trajectory's calls as a tree of turns. The next prompt begins with the tokens of the turn that it continues.

A call's text is never tokenised again where its tokens are known: the prompt is the old tokens, then the rendered new
messages. Miles, verifiers and AgentCore keep such trees, too; docs/concepts/token-exact.md tells what differs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from callsheet.gateway.chat import ChatRequest, Message
from callsheet.gateway.conversations.canonical import digests, next_digest
from callsheet.gateway.conversations.renderer import ParsedReply, Renderer, text_before
from callsheet.gateway.conversations.samples import Sample, merge, path_tokens
from callsheet.gateway.conversations.turns import ConversationTurn, Drift, Generated, Prepared, from_record

MAX_TURNS: Final = 1024
"""Turns of one conversation, unless told otherwise."""
MAX_REALIGNED_TOKENS: Final = 64
"""Tokens at the end of a reply that a harness may change without a fork, unless told otherwise."""


class HistoryNotReplayedError(ValueError):
    """A conversation has as many turns as it may have. The rule names the likely reason."""

    def __init__(self, turns: int, beginnings: int) -> None:
        super().__init__(
            f"the trajectory has {turns} turns, the most it may have; {beginnings} of them continue no other. A call"
            " must repeat the messages and the replies before it: a harness that does not begins anew with each call"
        )


class Conversation:
    """The turns of one trajectory, from however many harnesses and sub-agents that speak in its name.

    A call is prepared, generated elsewhere, and committed; several may be under way at once. What its prompt continues
    is settled when it is prepared.

    Args:
        renderer: The model's tokenizer and template.
        max_turns: The most turns.
        max_realigned_tokens: How many tokens at the end of a reply a harness may change without a fork.
    """

    def __init__(
        self,
        renderer: Renderer,
        *,
        max_turns: int = MAX_TURNS,
        max_realigned_tokens: int = MAX_REALIGNED_TOKENS,
    ) -> None:
        self._renderer = renderer
        self._max_turns = max_turns
        self._max_realigned_tokens = max_realigned_tokens
        self._turns: list[ConversationTurn] = []
        self._by_digest: dict[str, int] = {}
        self._by_prompt: dict[str, int] = {}

    @classmethod
    def restore(
        cls,
        renderer: Renderer,
        records: Iterable[Mapping[str, Any]],
        *,
        max_turns: int = MAX_TURNS,
        max_realigned_tokens: int = MAX_REALIGNED_TOKENS,
    ) -> Conversation:
        """Returns the conversation of which these are all records, in the order of their commits."""
        conversation = cls(renderer, max_turns=max_turns, max_realigned_tokens=max_realigned_tokens)
        for record in records:
            conversation.add(from_record(record))
        return conversation

    @property
    def turns(self) -> Sequence[ConversationTurn]:
        """All turns, in the order of their commits."""
        return tuple(self._turns)

    def prepare(self, request: ChatRequest) -> Prepared:
        """Returns the prompt of a call.

        Raises:
            HistoryNotReplayedError: There are as many turns as there may be.
            BadRequestError: The template refuses the messages.
        """
        if len(self._turns) >= self._max_turns:
            beginnings = sum(turn.parent is None for turn in self._turns)
            raise HistoryNotReplayedError(len(self._turns), beginnings)
        if request.prompt is not None:
            return self._from_tokens(request, request.prompt)
        chain = digests(request.messages, request.tools, request.template_arguments)
        parent = self._deepest(chain)
        changed = self._changed(request.messages, chain, 0 if parent is None else parent.length)
        messages = _with_reasoning(request.messages, changed)
        if parent is None:
            return self._begin(request, messages, chain[-1], changed)
        known = path_tokens(self._turns, parent.number)
        suffix = self._renderer.bridge(known, messages[parent.length :], request.tools, request.template_arguments)
        if suffix is None:
            return self._whole(request, chain[-1], "nothing proves what its messages add to the tokens before them")
        drift, reason = Drift.CLEAN, ""
        if changed is not None:
            realigned = self._realigned(request, known + suffix, chain[-1], changed)
            if realigned is not None:
                return realigned
            drift, reason = Drift.FORKED, f"the reply of turn {changed.number} was sent back changed"
        return Prepared(request, known + suffix, parent.number, len(known), parent.length, drift, reason, chain[-1])

    def commit(self, prepared: Prepared, generated: Generated) -> ConversationTurn:
        """Adds a turn for a call and what was sampled for it."""
        turn = self.draft(prepared, generated)
        self.add(turn)
        return turn

    def parse(self, prepared: Prepared, generated: Generated) -> ParsedReply:
        """Returns what a reply says."""
        request = prepared.request
        if request.prompt is not None:
            return ParsedReply(text_before(self._renderer.decode(generated.token_ids), request.sampling.stop))
        tools = () if request.tool_choice == "none" else request.tools
        return self._renderer.parse(generated.token_ids, tools, request.sampling.stop, prepared.token_ids)

    def draft(self, prepared: Prepared, generated: Generated, parsed: ParsedReply | None = None) -> ConversationTurn:
        """Returns the turn that `add` is to add once it is kept, if no other is added before.

        Args:
            prepared: The call.
            generated: What was sampled for it.
            parsed: What the reply says; None has the renderer find it out.
        """
        request, number = prepared.request, len(self._turns)
        parsed = self.parse(prepared, generated) if parsed is None else parsed
        message = _message(parsed, number)
        return ConversationTurn(
            number=number,
            parent=prepared.parent,
            kept=prepared.kept,
            suffix=prepared.token_ids[prepared.kept :],
            reply=generated,
            messages=tuple(request.messages[prepared.known_messages :]),
            message=message,
            prompt_digest=prepared.prompt_digest,
            digest=next_digest(prepared.prompt_digest, message),
            length=len(request.messages) + 1,
            drift=prepared.drift,
            reason=prepared.reason,
        )

    def samples(self) -> tuple[Sample, ...]:
        """Returns what a trainer takes: the paths through the turns, each sampled token with a loss once."""
        return merge(self._turns)

    def tokens_of(self, turn: int) -> tuple[int, ...]:
        """Returns the tokens of a turn's prompt and reply."""
        return path_tokens(self._turns, turn)

    def has_next(self, turn: int) -> bool:
        """Returns whether another turn continued a turn."""
        return any(each.parent == turn for each in self._turns)

    def add(self, turn: ConversationTurn) -> None:
        """Adds a turn.

        Raises:
            ValueError: It is not the next one.
        """
        if turn.number != len(self._turns):
            raise ValueError(f"turn is {turn.number}; it must be {len(self._turns)}, the next of the conversation")
        self._turns.append(turn)
        # The newest of equal ones is the one that is continued.
        self._by_digest[turn.digest] = turn.number
        self._by_prompt[turn.prompt_digest] = turn.number

    def _from_tokens(self, request: ChatRequest, prompt: str | Sequence[int]) -> Prepared:
        """Returns a prompt without messages. It continues the longest turn that it begins with."""
        tokens = self._renderer.encode(prompt) if isinstance(prompt, str) else tuple(prompt)
        digest = next_digest("", {"role": "prompt", "content": " ".join(map(str, tokens))})
        kept, parent = max(self._beginnings(tokens), default=(0, -1))
        return Prepared(request, tokens, None if parent < 0 else parent, kept, 0, Drift.CLEAN, "", digest)

    def _beginnings(self, tokens: tuple[int, ...]) -> Iterator[tuple[int, int]]:
        """Yields length and number of the turns that a prompt begins with."""
        for turn in self._turns:
            length = turn.total_length
            if length < len(tokens) and tokens[:length] == path_tokens(self._turns, turn.number):
                yield length, turn.number

    def _deepest(self, chain: Sequence[str]) -> ConversationTurn | None:
        """Returns the turn with the most messages that a request begins with, if it has messages beyond them."""
        for digest in reversed(chain[:-1]):
            number = self._by_digest.get(digest)
            if number is not None:
                return self._turns[number]
        return None

    def _changed(self, messages: Sequence[Message], chain: Sequence[str], known: int) -> ConversationTurn | None:
        """Returns the turn whose reply the request has in another form, if it has one."""
        replies = (place for place in range(known, len(messages)) if messages[place].get("role") == "assistant")
        place = next(replies, None)
        number = None if place is None else self._by_prompt.get(chain[place])
        return None if number is None else self._turns[number]

    def _begin(
        self, request: ChatRequest, messages: Sequence[Message], digest: str, changed: ConversationTurn | None
    ) -> Prepared:
        """Returns a prompt that continues no turn, unless one whose reply was changed a little."""
        if changed is not None:
            tokens = self._renderer.render(messages, request.tools, request.template_arguments)
            realigned = self._realigned(request, tokens, digest, changed)
            if realigned is not None:
                return realigned
            return self._whole(request, digest, f"the reply of turn {changed.number} was sent back changed")
        repeats = any(message.get("role") == "assistant" for message in request.messages)
        lost = "its first reply is none of this trajectory" if repeats and self._turns else ""
        return self._whole(request, digest, lost)

    def _realigned(
        self, request: ChatRequest, tokens: tuple[int, ...], digest: str, changed: ConversationTurn
    ) -> Prepared | None:
        """Returns the prompt as a continuation of the changed turn, if only the end of its reply is lost."""
        old = path_tokens(self._turns, changed.number)
        kept = _common_length(old, tokens)
        if kept < changed.prompt_length or changed.total_length - kept > self._max_realigned_tokens:
            return None
        reason = f"the last {changed.total_length - kept} tokens of turn {changed.number} were replaced"
        return Prepared(request, tokens, changed.number, kept, changed.length - 1, Drift.REALIGNED, reason, digest)

    def _whole(self, request: ChatRequest, digest: str, reason: str) -> Prepared:
        tokens = self._renderer.render(request.messages, request.tools, request.template_arguments)
        drift = Drift.FORKED if reason else Drift.CLEAN
        return Prepared(request, tokens, None, 0, 0, drift, reason, digest)


def _common_length(left: Sequence[int], right: Sequence[int]) -> int:
    for place, (one, other) in enumerate(zip(left, right, strict=False)):
        if one != other:
            return place
    return min(len(left), len(right))


def _with_reasoning(messages: Sequence[Message], changed: ConversationTurn | None) -> Sequence[Message]:
    """Returns the messages with the reasoning of a changed reply, which most harnesses drop."""
    if changed is None or not changed.message.get("reasoning_content"):
        return messages
    place = changed.length - 1
    if messages[place].get("reasoning_content"):
        return messages
    replaced = {**messages[place], "reasoning_content": changed.message["reasoning_content"]}
    return [*messages[:place], replaced, *messages[place + 1 :]]


def _message(parsed: ParsedReply, turn: int) -> Message:
    """Returns a reply as a message. Ids of calls are unique in the conversation, and the same after a restart."""
    message: dict[str, Any] = {"role": "assistant", "content": parsed.content}
    if parsed.reasoning is not None:
        message["reasoning_content"] = parsed.reasoning
    if parsed.tool_calls:
        message["content"] = parsed.content or None
        message["tool_calls"] = [
            {
                # Nine letters and digits: some templates refuse others.
                "id": f"c{turn:05d}{place:03d}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for place, call in enumerate(parsed.tool_calls)
        ]
    return message
