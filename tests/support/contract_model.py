"""A language model in a few lines: a keyed function from weights and tokens to logits, the same in all processes.

What it knows of a sequence is one number, its state, which stands for the KV cache: the state of a prefix depends on
the weights that each of its tokens was computed with. KV of old weights thus shows in log-probabilities, as in a model.
"""

from __future__ import annotations

import functools
import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from callsheet.managers.inference import tokenizer

VOCABULARY = tokenizer.VOCABULARY_SIZE
WEIGHTS_FILE = "weights.json"
_SPREAD = 2.0
Vector = npt.NDArray[np.float64]


class ContractWeightsError(Exception):
    """A directory holds no weights that the model can use."""


def save_contract_weights(directory: Path, seed: int, *, vocabulary: int = VOCABULARY) -> Path:
    """Writes the weights of a seed as a directory, with a config.json; returns where."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"vocab_size": vocabulary}), encoding="utf-8")
    (directory / WEIGHTS_FILE).write_text(json.dumps({"seed": seed, "vocabulary": vocabulary}), encoding="utf-8")
    return directory


def read_contract_weights(directory: Path) -> int:
    """Returns the seed of the weights in a directory.

    Raises:
        ContractWeightsError: It has none, or those of another model.
    """
    try:
        saved = json.loads((directory / WEIGHTS_FILE).read_text(encoding="utf-8"))
        seed, vocabulary = int(saved["seed"]), int(saved["vocabulary"])
    except (OSError, ValueError, KeyError) as error:
        raise ContractWeightsError(f"{directory}: {error}") from error
    if vocabulary != VOCABULARY:
        raise ContractWeightsError(f"{directory}: its shape is not that of the running model")
    return seed


@functools.lru_cache(maxsize=65_536)
def next_state(seed: int, state: int, token: int) -> int:
    """The state of a sequence with one more token, computed with the weights of a seed."""
    packed = struct.pack("<qQq", seed, state, token)
    return int.from_bytes(hashlib.blake2b(packed, digest_size=8).digest(), "little")


def state_of(seed: int, tokens: Iterable[int], state: int = 0) -> int:
    """The state after some tokens."""
    for token in tokens:
        state = next_state(seed, state, token)
    return state


def log_probs_after(seed: int, state: int, temperature: float = 1.0) -> Vector:
    """Log-probabilities of all tokens, shape (VOCABULARY,)."""
    key = np.array([state & (2**64 - 1), seed & (2**64 - 1)], dtype=np.uint64)
    logits = np.random.Generator(np.random.Philox(key=key)).standard_normal(VOCABULARY) * _SPREAD / temperature
    top = logits.max()
    return np.asarray(logits - top - np.log(np.exp(logits - top).sum()))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A token, with log-probabilities before temperature, after it, and of what it was drawn from."""

    token: int
    raw: Vector
    scaled: Vector
    sampled: float


def draw(
    seed: int, state: int, uniform: float, *, temperature: float, top_k: int, top_p: float, joint: bool = True
) -> Drawn:
    """Draws the next token with a number in [0, 1)."""
    raw = log_probs_after(seed, state)
    if temperature == 0 or top_k == 1:
        return Drawn(int(raw.argmax()), raw, raw, 0.0)
    scaled = log_probs_after(seed, state, temperature)
    order = np.argsort(-scaled, kind="stable")
    probabilities = np.exp(scaled[order])
    if top_k > 0:
        probabilities[top_k:] = 0.0
    before = np.cumsum(probabilities) - probabilities
    probabilities[before > top_p * (1.0 if joint else probabilities.sum())] = 0.0
    probabilities /= probabilities.sum()
    place = min(
        int(np.searchsorted(np.cumsum(probabilities), uniform, side="right")), int(probabilities.nonzero()[0][-1])
    )
    return Drawn(int(order[place]), raw, scaled, float(np.log(probabilities[place])))


def expected_log_probs(seed: int, prompt: Sequence[int], output: Sequence[int]) -> list[float]:
    """What a trainer would compute for an output after a prompt, with the weights of a seed."""
    state = state_of(seed, prompt)
    told = []
    for token in output:
        told.append(float(log_probs_after(seed, state)[token]))
        state = next_state(seed, state, token)
    return told
