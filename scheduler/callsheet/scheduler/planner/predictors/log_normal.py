"""The log-normal distribution: bounded mean, quantile, mean residual life, and what a censored observation tells.

All functions take `log_mean` and `log_sd` of the logarithm of seconds (or megabytes). They are written in terms
of Mills' ratio, which neither overflows nor loses its digits far in the tail.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from callsheet.scheduler.planner.predictors.values import Prediction

_SQRT_2 = math.sqrt(2.0)
_SQRT_HALF_PI = math.sqrt(math.pi / 2.0)
_LOG_SQRT_TWO_PI = 0.5 * math.log(2.0 * math.pi)
# From here on the continued fraction is exact to double precision, and erfc starts to underflow.
_TAIL = 6.0
# One run in so many is of another sort than those that the prediction rests on: a command that hangs, for instance.
# Its seconds have the same median, and this deviation at least.
_OUTLIERS = 0.01
_OUTLIER_LOG_SD = 1.5
# Below this many deviations under the median, next to nothing of the distribution is left out.
_HEAD = -8.0


def mills_ratio(z: float) -> float:
    """(1 - Phi(z)) / phi(z) of the standard normal distribution, for z >= -37 (beyond, the value at -37)."""
    if z < _TAIL:
        z = max(z, -37.0)
        return _SQRT_HALF_PI * math.erfc(z / _SQRT_2) * math.exp(0.5 * z * z)
    # Laplace's continued fraction, from its end.
    fraction = z
    for depth in range(16, 0, -1):
        fraction = z + depth / fraction
    return 1.0 / fraction


def bounded_mean(log_mean: float, log_sd: float, limit: float) -> float:
    """E[min(X, limit)]."""
    log_limit = math.log(limit)
    z = (log_limit - log_mean) / log_sd
    if z < _HEAD:
        return limit
    below = 0.5 * math.erfc((log_sd - z) / _SQRT_2)
    above = 0.5 * math.erfc(z / _SQRT_2)
    # Where exp overflows, nothing worth mentioning lies below the limit.
    exponent = log_mean + 0.5 * log_sd * log_sd
    return (math.exp(exponent) * below if exponent < 700.0 else 0.0) + limit * above


def quantile(log_mean: float, log_sd: float, normal_quantile: float) -> float:
    """The value below which a share Phi(normal_quantile) lies."""
    return math.exp(min(log_mean + normal_quantile * log_sd, 700.0))


def expected_remaining(prediction: Prediction, attained_s: float, timeout_s: float = math.inf) -> float:
    """Mean seconds left of a run that has not ended after `attained_s`, at its fewest units.

    E[min(X, timeout) - attained | X > attained]. With the wide distributions of real commands it grows with what was
    attained already.

    Args:
        prediction: What was predicted before it ran.
        attained_s: Its execution clock so far.
        timeout_s: Where its execution clock ends it.
    """
    if attained_s >= timeout_s:
        return 0.0
    log_mean, log_sd = prediction.log_mean, prediction.log_sd
    if attained_s <= 0.0 or (math.log(attained_s) - log_mean) / log_sd < _HEAD:
        whole = bounded_mean(log_mean, log_sd, min(timeout_s, 1e300))
        return max(whole - max(attained_s, 0.0), 0.0)
    z = (math.log(attained_s) - log_mean) / log_sd
    left = _excess(attained_s, z, log_sd)
    if timeout_s == math.inf:
        return left
    z_end = (math.log(timeout_s) - log_mean) / log_sd
    reaches_end = math.exp(0.5 * (z * z - z_end * z_end)) * mills_ratio(z_end) / mills_ratio(z)
    return max(left - reaches_end * _excess(timeout_s, z_end, log_sd), 0.0)


def remaining_life(prediction: Prediction, attained_s: float, timeout_s: float = math.inf) -> float:
    """Mean seconds left of a run, where few runs are outliers; see `expected_remaining`.

    A narrow prediction leaves next to nothing of a run that is far beyond it. Such a run shows that it is none of those
    predicted: the longer it lasts, the likelier it is an outlier, which is as long again.
    """
    usual = expected_remaining(prediction, attained_s, timeout_s)
    if attained_s <= 0.0 or prediction.log_sd >= _OUTLIER_LOG_SD:
        return usual
    outlier = prediction._replace(log_sd=_OUTLIER_LOG_SD)
    gap = _log_survival(prediction, attained_s) - _log_survival(outlier, attained_s)
    share = 1.0 / (1.0 + (1.0 - _OUTLIERS) / _OUTLIERS * math.exp(min(gap, 700.0)))
    return usual + share * (expected_remaining(outlier, attained_s, timeout_s) - usual)


def _log_survival(prediction: Prediction, seconds: float) -> float:
    """log P(X > seconds)."""
    z = (math.log(seconds) - prediction.log_mean) / prediction.log_sd
    return 0.0 if z < _HEAD else math.log(mills_ratio(z)) - 0.5 * z * z - _LOG_SQRT_TWO_PI


def _excess(value: float, z: float, log_sd: float) -> float:
    """E[X - value | X > value], where value lies z deviations above the median."""
    return value * (mills_ratio(z - log_sd) / mills_ratio(z) - 1.0)


class Censored(NamedTuple):
    """A run that was cut off, as the uncensored observation with the same effect on the estimate.

    Attributes:
        log_value: Logarithm of the stand-in; never below where the run was cut off.
        weight: How much it tells, in (0, 1): a run cut off early tells next to nothing.
    """

    log_value: float
    weight: float


def censored(log_mean: float, log_sd: float, log_limit: float) -> Censored:
    """Returns what "it would have taken longer than exp(log_limit)" shows about the mean.

    One Newton step on the likelihood of the right-censored normal (Tobit) model: its score is that of an observation at
    `log_value`, its information that of `weight` observations.
    """
    cut = (log_limit - log_mean) / log_sd
    hazard = 1.0 / mills_ratio(cut)
    gap = hazard - cut
    return Censored(log_mean + log_sd / gap, min(max(hazard * gap, 0.0), 1.0))
