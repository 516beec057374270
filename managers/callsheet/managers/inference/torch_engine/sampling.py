"""Chooses one token per row from logits. Every row is treated on its own; nothing in a row depends on another."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from callsheet.managers.inference.driver import LogProbsMode, Sampling
from torch import Tensor


def choose_tokens(
    logits: Tensor, samplings: Sequence[Sampling], uniforms: Sequence[float]
) -> tuple[list[int], list[float]]:
    """Samples by inverting the cumulative distribution over tokens in falling order of likelihood.

    Args:
        logits: [rows, vocabulary], float32. Rows after `len(samplings)` are padding and yield nothing.
        samplings: How to sample each row.
        uniforms: For each row a number in [0, 1); unused where the temperature is 0.

    Returns:
        Token ids, and the natural logarithm of their probabilities, each under the distribution that its sampling
        names. A logarithm that is not finite says that the row's logits were not.
    """
    if all(sampling.temperature == 0 for sampling in samplings):
        return _most_likely(logits[: len(samplings)], samplings)
    padding = logits.shape[0] - len(samplings)
    columns = [_parameters(sampling, uniform) for sampling, uniform in zip(samplings, uniforms, strict=True)]
    columns += [(1.0, 1.0, 1.0, 0.0)] * padding
    table = torch.tensor(columns, dtype=torch.float64, device=logits.device)
    temperature, top_p, top_k, uniform = table.unsqueeze(-1).unbind(1)
    ordered, ids = torch.sort(logits, dim=-1, descending=True, stable=True)
    scaled = (ordered - ordered[:, :1]).double() / temperature
    probabilities = torch.softmax(scaled, dim=-1)
    better = probabilities.cumsum(-1) - probabilities
    rank = torch.arange(logits.shape[-1], device=logits.device)
    # A token whose probability is lost to rounding cannot be drawn, however close the number is to 1.
    kept = ((better < top_p) & (rank < top_k) & (probabilities > 0)) | (rank == 0)
    cumulative = torch.where(kept, probabilities, 0.0).cumsum(-1)
    index = (cumulative <= uniform * cumulative[:, -1:]).sum(-1, keepdim=True)
    index = torch.minimum(index, kept.sum(-1, keepdim=True) - 1)
    tokens = ids.gather(-1, index)
    log_probs = probabilities.gather(-1, index).log() - cumulative[:, -1:].log()
    if any(sampling.log_probs_mode is LogProbsMode.RAW for sampling in samplings):
        raw = torch.log_softmax(logits, dim=-1).gather(-1, tokens).double()
        log_probs = torch.where(_raw_rows(samplings, padding, logits.device), raw, log_probs)
    both = torch.cat([tokens.double(), log_probs], dim=-1)[: len(samplings)].tolist()
    return [int(token) for token, _ in both], [log_prob for _, log_prob in both]


def _most_likely(logits: Tensor, samplings: Sequence[Sampling]) -> tuple[list[int], list[float]]:
    """What `choose_tokens` chooses where all are greedy: of equal ones the first, without sorting the others."""
    tokens = torch.argmax(logits, dim=-1, keepdim=True)
    raw = torch.log_softmax(logits, dim=-1).gather(-1, tokens).double()
    told = torch.where(_raw_rows(samplings, 0, logits.device) | ~raw.isfinite(), raw, 0.0)
    return tokens.flatten().tolist(), told.flatten().tolist()


def _raw_rows(samplings: Sequence[Sampling], padding: int, device: torch.device) -> Tensor:
    rows = [sampling.log_probs_mode is LogProbsMode.RAW for sampling in samplings] + [False] * padding
    return torch.tensor(rows, device=device).unsqueeze(-1)


def _parameters(sampling: Sampling, uniform: float) -> tuple[float, float, float, float]:
    """Temperature, top_p, top_k and uniform as the table holds them; greedy is a top_k of 1."""
    if sampling.temperature == 0:
        return 1.0, 1.0, 1.0, 0.0
    return sampling.temperature, sampling.top_p, float(sampling.top_k or 2**31), uniform
