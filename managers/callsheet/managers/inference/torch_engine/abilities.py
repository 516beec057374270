"""What the torch engine can do. Imports nothing heavy."""

from __future__ import annotations

from callsheet.managers.inference.driver import EngineCapabilities, PauseMode, SourceKind, UpdateMode


def torch_abilities(*, prefix_cache: bool, stop_texts: bool) -> EngineCapabilities:
    """Returns what an engine can do, given whether it keeps prefixes and knows the text of its tokens."""
    return EngineCapabilities(
        pause_modes=frozenset(PauseMode),
        update_modes=frozenset(UpdateMode),
        version_spans=True,
        pause_request=True,
        prefix_cache=prefix_cache,
        batch_invariant=True,
        stop_texts=stop_texts,
        weight_sources=frozenset({SourceKind.DISK}),
    )
