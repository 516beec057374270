"""What can be said of a server's abilities before it was found. Imports nothing heavy."""

from __future__ import annotations

from callsheet.managers.inference.driver import EngineCapabilities

NOT_ATTACHED = EngineCapabilities(
    update_modes=frozenset(),
    version_spans=False,
    prefix_cache=False,
    batch_invariant=False,
    stop_texts=False,
    log_probs_modes=frozenset(),
    abort=False,
    seeds=False,
)
