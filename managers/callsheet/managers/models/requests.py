"""Check the tokens of a request against the bounds of a model. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class SequenceBounds(Protocol):
    """Bounds on the sequences that a model can take."""

    @property
    def vocabulary_size(self) -> int:
        """Token ids are 0 to `vocabulary_size - 1`."""

    @property
    def context_length(self) -> int:
        """The most tokens of one sequence, prompt and output together."""


@dataclass(frozen=True, slots=True)
class TokenProblem:
    """Reason why a model can never take these tokens: a stable word, and a sentence naming value and rule."""

    reason: str
    message: str


def token_problem(token_ids: Sequence[int], bounds: SequenceBounds, new_tokens: int = 0) -> TokenProblem | None:
    """Returns what is wrong with a sequence, or None.

    Args:
        token_ids: The sequence.
        bounds: Of the model.
        new_tokens: Room that must be left in the context.
    """
    if not token_ids:
        return TokenProblem("no_tokens", "the sequence is empty; it must hold at least one token")
    if min(token_ids) < 0 or max(token_ids) >= bounds.vocabulary_size:
        bad = next(token for token in token_ids if not 0 <= token < bounds.vocabulary_size)
        return TokenProblem(
            "token_out_of_vocabulary", f"token id {bad} is not one of the model's 0 to {bounds.vocabulary_size - 1}"
        )
    most = bounds.context_length - new_tokens
    if len(token_ids) > most:
        return TokenProblem(
            "prompt_too_long",
            f"the sequence has {len(token_ids)} tokens; the model's context of {bounds.context_length} takes {most}",
        )
    return None
