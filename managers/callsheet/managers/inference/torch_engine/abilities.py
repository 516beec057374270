"""What the torch engine can do. Imports nothing heavy."""

from __future__ import annotations

from callsheet.managers.inference.driver import EngineCapabilities, PauseMode, SourceKind, UpdateMode


def torch_abilities(*, prefix_cache: bool, stop_texts: bool, half_precision: bool = False) -> EngineCapabilities:
    """Returns what an engine can do: whether it keeps prefixes, knows the text of its tokens, and rounds early."""
    return EngineCapabilities(
        pause_modes=frozenset(PauseMode),
        update_modes=frozenset(UpdateMode),
        version_spans=True,
        pause_request=True,
        prefix_cache=prefix_cache,
        batch_invariant=True,
        stop_texts=stop_texts,
        weight_sources=frozenset(SourceKind),
        kv_namespaces=True,
        streaming=True,
        sleep=True,
        log_prob_tolerance=0.1 if half_precision else 1e-3,
    )
