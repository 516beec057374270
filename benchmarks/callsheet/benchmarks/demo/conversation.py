"""What an agent and its sandbox have said so far, as tokens of the byte tokenizer."""

from __future__ import annotations

import random
from collections.abc import Sequence

from callsheet.managers.inference import tokenizer

PROMPT_LIMIT = 1024
OBSERVATION_LIMIT = 400

_FEWEST_TOKENS = 24
_MOST_TOKENS = 800
_MEDIAN_TOKENS = 150
_SPREAD = 0.8


def thinking_tokens(rng: random.Random) -> int:
    """How many tokens an agent thinks before it acts: log-normal, with a median of 150, between 24 and 800.

    On a quiet core that makes environments busy for about a third of a trajectory's life; real ones are for 15 to 47 %.
    """
    drawn = _MEDIAN_TOKENS * rng.lognormvariate(0.0, _SPREAD)
    return max(_FEWEST_TOKENS, min(_MOST_TOKENS, round(drawn)))


class DemoConversation:
    """A growing list of tokens, of which prompts are the latest part.

    A prompt begins with the introduction. When it would pass `PROMPT_LIMIT` tokens, about half of what follows the
    introduction is left out, and stays out, so that the prompts after it share a prefix again.
    """

    def __init__(self, introduction: str) -> None:
        self._introduction = tokenizer.encode(introduction, begin=True)
        self._later: list[int] = []
        self._left_out = 0

    @property
    def token_ids(self) -> list[int]:
        """All tokens so far."""
        return [*self._introduction, *self._later]

    def add_thinking(self, token_ids: Sequence[int]) -> None:
        """Adds what the engine generated."""
        self._later.extend(token_ids)

    def add_text(self, text: str) -> None:
        """Adds a command or an observation as a turn of its own; the middle of a long one is left out."""
        if len(text) > OBSERVATION_LIMIT:
            text = f"{text[: OBSERVATION_LIMIT // 2]}\n...\n{text[-OBSERVATION_LIMIT // 2 :]}"
        self._later.extend(tokenizer.encode(text, end_of_turn=True))

    def prompt(self) -> list[int]:
        """The tokens to generate from; at most `PROMPT_LIMIT`."""
        room = PROMPT_LIMIT - len(self._introduction)
        if len(self._later) - self._left_out > room:
            self._left_out = len(self._later) - room // 2
        return [*self._introduction, *self._later[self._left_out :]]
