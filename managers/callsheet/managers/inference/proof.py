"""Decides if an engine has the weights that it was given. Pure: answers to a canary prompt are compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CANARY_TOKENS = 8
"""Tokens of an answer, where nobody says what is expected."""
USUAL_PROMPT = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)
"""A prompt that every vocabulary has."""


@dataclass(frozen=True, slots=True)
class CanaryAnswer:
    """Greedy answer of a model to the canary prompt, with the log-probability of each token at temperature 1."""

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]

    @classmethod
    def of(cls, token_ids: Sequence[int], log_probs: Sequence[float]) -> CanaryAnswer:
        """Returns the answer with these tokens."""
        return cls(tuple(token_ids), tuple(log_probs))


def largest_difference(one: CanaryAnswer, other: CanaryAnswer) -> float:
    """Returns by how much two answers differ in a log-probability; infinite where one has none.

    They are compared up to and with the first token that differs. There both chose the likeliest, and of weights that
    are the same these are as likely: a tie may fall either way. What follows has another prompt.
    """
    if not one.token_ids or not other.token_ids or len(one.log_probs) != len(one.token_ids):
        return float("inf")
    pairs = list(zip(one.token_ids, other.token_ids, strict=False))
    alike = next((place for place, (a, b) in enumerate(pairs) if a != b), len(pairs) - 1)
    differences = [abs(a - b) for a, b in zip(one.log_probs, other.log_probs, strict=False)][: alike + 1]
    return max(differences) if differences and all(map(math.isfinite, differences)) else float("inf")


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence about an engine after an update.

    Attributes:
        version: The version that the engine was to have.
        version_read: The version that the engine itself names.
        after: The engine's answer now.
        before: The engine's answer before the update; None if there was no question or no answer.
        expected: The answer of the trainer's own model; None if it is not known.
        reference: The answer of the first engine that was proved; None if there was none.
        shown: Proof that it has the tensors that came, see `EngineDriver.update_weights`; empty if there is none.
        tolerance: The most by which log-probabilities of the same weights may differ on this kind of engine.
    """

    version: int
    version_read: int
    after: CanaryAnswer
    before: CanaryAnswer | None = None
    expected: CanaryAnswer | None = None
    reference: CanaryAnswer | None = None
    shown: str = ""
    tolerance: float = 1e-3


def objection(evidence: Evidence) -> str:
    """Returns why an engine is not proved to have its new weights, as a sentence; empty if it is.

    An answer need not differ from the one before: a small step changes it by less than can be told.
    """
    if evidence.version_read != evidence.version:
        return f"the engine names version {evidence.version_read} after an update to {evidence.version}"
    if not all(map(math.isfinite, evidence.after.log_probs)):
        return "the canary has log-probabilities that are no numbers"
    for of_whom, known in (("the trainer's model", evidence.expected), ("the first engine", evidence.reference)):
        if known is not None:
            difference = largest_difference(evidence.after, known)
            if difference > evidence.tolerance:
                return f"the canary differs from that of {of_whom} by {_shown(difference, evidence.tolerance)}"
    return ""


def warning(evidence: Evidence) -> str:
    """Returns what a trainer should know of an engine that is proved, as a sentence; empty if that is nothing."""
    difference = None if evidence.before is None else largest_difference(evidence.after, evidence.before)
    if difference is None or difference > evidence.tolerance:
        return ""
    told = f"the canary is as before: it differs by {difference:.3g}, within {evidence.tolerance:.3g}; "
    return told + (evidence.shown or "only the engine's word speaks for the update")


def _shown(difference: float, tolerance: float) -> str:
    return f"{difference:.3g} where {tolerance:.3g} is allowed"
