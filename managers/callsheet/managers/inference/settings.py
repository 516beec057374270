"""Settings of an inference manager with the torch engine. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from callsheet.managers.models.config import TransformerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceSettings:
    """What to serve and with what.

    Attributes:
        model: Name of the hosted service.
        shape: Shape of a model with random weights; unused when `weights` is given.
        weights: Directory with `config.json` and `weights.pt`; None fills a model of `shape` from `seed`.
        seed: Seed of random weights.
        policy_version: Version of the weights at the start.
        slots: The most attempts at once, and the most sequences in the batch.
        threads: Threads of torch's kernels; registered as reserved cores.
        cores: The cores to pin them to, see `callsheet.managers.inference.cores.reserved_cores`; empty does not pin.
        device: "cpu", or a torch device such as "cuda".
        gpus: GPUs of the node to register as reserved; 0 on a CPU.
        kv_cache_tokens: Tokens of the KV cache, all allocated at the start; a multiple of 16.
        prefix_cache_tokens: Prompt tokens whose KV is kept for later prompts, beside the KV cache; 0 keeps none.
        load_at_first_use: Load the model with the first request, and import torch no earlier.
        prefill_chunk: Prompt tokens computed in one piece; the grain of prefix reuse.
    """

    model: str = "policy"
    shape: TransformerConfig = field(default_factory=TransformerConfig)
    weights: Path | None = None
    seed: int = 0
    policy_version: int = 0
    slots: int = 64
    threads: int = 1
    cores: tuple[int, ...] = ()
    device: str = "cpu"
    gpus: int = 0
    kv_cache_tokens: int = 32_768
    prefix_cache_tokens: int = 8_192
    prefill_chunk: int = 128
    load_at_first_use: bool = False

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model: '' is empty; it must be given")
        for name, least in (("slots", 1), ("threads", 1), ("policy_version", 0), ("gpus", 0), ("seed", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}: {getattr(self, name)} must be at least {least}")
