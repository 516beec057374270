"""How a model samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class LogProbsMode(Enum):
    """Of which distribution log-probabilities are. Trainers that correct for off-policy samples must know."""

    SAMPLED = "sampled"
    """Of the one that tokens were drawn from: after temperature, top_k and top_p. Greedy sampling gives 0 for each."""
    RAW = "raw"
    """Of the model's own output at temperature 1, over its whole vocabulary."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. Nothing is greedy by default, and without a seed each request draws its own.

    Attributes:
        max_new_tokens: The most new tokens, at least 1.
        temperature: 1 is the model's own distribution, 0 is greedy.
        top_p: Nucleus mass in (0, 1]; 1 is off.
        top_k: Keep the k most likely tokens; 0 means all.
        seed: Seed of this request's own random stream: the same seed, prompt and weights give the same tokens. None:
            the engine draws one, which the result tells.
        stop: Generation stops once the text of the new tokens contains any of these. An engine without a tokenizer
            fails the action as ENV `no_tokenizer`.
        stop_token_ids: Generation stops after any of these tokens.
        ignore_eos: Whether the model's own end tokens do not end generation.
        log_probs_mode: Of which distribution the log-probabilities are to be.
    """

    max_new_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    log_probs_mode: LogProbsMode = LogProbsMode.SAMPLED
    ignore_eos: bool = False
