"""Chooses a token from logits."""

from __future__ import annotations

import math

import torch
from callsheet.managers.inference.driver import LogProbsMode, Sampling
from torch import Tensor


def choose_token(logits: Tensor, sampling: Sampling, uniform: float) -> tuple[int, float]:
    """Samples by inverting the cumulative distribution over tokens in falling order of likelihood.

    Args:
        logits: [vocabulary], float32.
        sampling: How to sample.
        uniform: A number in [0, 1); unused where the temperature is 0.

    Returns:
        The token, and the natural logarithm of its probability under the distribution that the sampling names. A
        logarithm that is not finite says that the logits were not.
    """
    if sampling.temperature == 0:
        # Of equal ones the first.
        token = int(logits.argmax())
        raw = float(torch.log_softmax(logits, dim=-1)[token])
        return token, 0.0 if math.isfinite(raw) and sampling.log_probs_mode is LogProbsMode.SAMPLED else raw
    ordered, ids = torch.sort(logits, descending=True, stable=True)
    probabilities = torch.softmax((ordered - ordered[0]).double() / sampling.temperature, dim=-1)
    cumulative = probabilities.cumsum(-1)
    # A token whose probability is lost to rounding cannot be drawn, however close the number is to 1.
    kept = (cumulative - probabilities < sampling.top_p) & (probabilities > 0)
    count = max(1, min(int(kept.sum()), sampling.top_k or len(kept)))
    mass = cumulative[count - 1]
    index = min(int((cumulative[:count] <= uniform * mass).sum()), count - 1)
    token = int(ids[index])
    if sampling.log_probs_mode is LogProbsMode.RAW:
        return token, float(torch.log_softmax(logits, dim=-1)[token])
    return token, float(probabilities[index].log() - mass.log())
