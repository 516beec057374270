"""Log-probabilities that a request wants, from those that an engine tells. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from callsheet.managers.inference.driver import (
    EngineError,
    LogProbsMode,
    Sampling,
)
from callsheet.managers.inference.http_engine.requests import finite

MAX_RENORMALISED = 64
"""The most likely tokens whose log-probabilities are asked for to renormalise over them."""


class ToldLogProbs(Enum):
    """Distribution whose log-probabilities an engine reports."""

    RAW = "raw"
    """The distribution is the model's own output."""
    SCALED = "scaled"
    """The distribution is after temperature, before top_k and top_p; at temperature 0 it is the model's own output."""
    SAMPLED = "sampled"
    """The distribution is the one from which tokens were drawn."""
    UNKNOWN = "unknown"
    """The server does not name it; without temperature, top_k and top_p all are the same."""


class Derivation(Enum):
    """How to get at the log-probabilities that a request wants."""

    AS_TOLD = "as_told"
    ZEROS = "zeros"
    """The token is drawn with certainty."""
    OVER_TOP_K = "over_top_k"
    """Renormalised over the `top_k` most likely tokens, whose own are asked for as well."""
    NONE = "none"
    """They cannot be told."""


def derivation(told: ToldLogProbs, sampling: Sampling) -> Derivation:
    """How to get at what a request wants from what the engine tells."""
    greedy = sampling.temperature == 0 or sampling.top_k == 1
    plain = sampling.temperature in (0, 1)
    whole = sampling.temperature == 1 and not sampling.top_k and sampling.top_p == 1
    if sampling.log_probs_mode is LogProbsMode.RAW:
        unscaled = told is ToldLogProbs.RAW or (told is ToldLogProbs.SCALED and plain)
        return Derivation.AS_TOLD if unscaled or whole else Derivation.NONE
    if greedy:
        return Derivation.ZEROS
    if told is ToldLogProbs.SAMPLED or whole:
        return Derivation.AS_TOLD
    if told is ToldLogProbs.UNKNOWN:
        return Derivation.NONE
    if told is ToldLogProbs.RAW and sampling.temperature != 1:
        return Derivation.NONE
    if not sampling.top_k and sampling.top_p == 1:
        return Derivation.AS_TOLD
    return Derivation.OVER_TOP_K if 1 < sampling.top_k <= MAX_RENORMALISED else Derivation.NONE


def over_top_k(own: float, likeliest: Sequence[float], sampling: Sampling, *, joint: bool) -> float:
    """A token's log-probability among those that it was drawn from.

    Args:
        own: Its log-probability over the whole vocabulary.
        likeliest: Those of the `top_k` most likely tokens, in any order.
        sampling: With its top_k and top_p.
        joint: Whether top_p is a mass of the whole vocabulary; otherwise of the `top_k` tokens alone.
    """
    kept = [math.exp(each) for each in sorted(likeliest, reverse=True)[: sampling.top_k]]
    bound = sampling.top_p * (1.0 if joint else sum(kept))
    mass = 0.0
    for probability in kept:
        if mass > bound:
            break
        mass += probability
    return min(own - math.log(mass), 0.0)


def log_probs_of(
    how: Derivation,
    sampling: Sampling,
    tokens: int,
    own: Sequence[float | None],
    likeliest: Sequence[Sequence[float | None]],
    *,
    joint: bool,
) -> tuple[float, ...]:
    """The log-probabilities that a request wants; none where they cannot be told.

    Args:
        how: How they follow from those told.
        sampling: What the request asked for.
        tokens: How many tokens there are.
        own: The log-probability of each token, as told.
        likeliest: Those of the most likely tokens at each place, as told.
        joint: See `over_top_k`.

    Raises:
        EngineError: There are not as many as tokens.
    """
    if how is Derivation.NONE:
        return ()
    if how is Derivation.ZEROS:
        return (0.0,) * tokens
    told = finite(own[:tokens])
    if len(told) != tokens:
        raise EngineError(f"the engine told {len(told)} log-probabilities of {tokens} tokens")
    if how is Derivation.AS_TOLD:
        return told
    pairs = zip(told, likeliest, strict=False)
    return tuple(over_top_k(each, finite(top), sampling, joint=joint) for each, top in pairs)
