"""Abilities of the torch engine. Imports nothing heavy."""

from __future__ import annotations

from callsheet.managers.inference.driver import EngineCapabilities
from callsheet.managers.inference.weights import DiskWeights, FirstWeights, GroupWeights, TensorWeights, UpdateMode


def torch_abilities(
    *, prefix_cache: bool, stop_texts: bool, device: str, half_precision: bool = False
) -> EngineCapabilities:
    """Returns what an engine can do.

    Args:
        prefix_cache: Whether it keeps prefixes.
        stop_texts: Whether it knows the text of its tokens.
        device: Where it computes, as torch names it.
        half_precision: Whether it computes in numbers of 16 bits.
    """
    return EngineCapabilities(
        update_modes=frozenset(UpdateMode),
        version_spans=True,
        prefix_cache=prefix_cache,
        batch_invariant=True,
        stop_texts=stop_texts,
        weight_sources=frozenset({DiskWeights, TensorWeights, GroupWeights, FirstWeights}),
        kv_namespaces=True,
        log_prob_tolerance=0.1 if half_precision else 1e-3,
        gpus=int(not device.startswith("cpu")),
    )
