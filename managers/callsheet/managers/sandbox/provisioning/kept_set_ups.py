"""Which set-ups are kept on this node, by the names that the scheduler knows: it prefers nodes that keep one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from callsheet.managers.sandbox.images.layer_cache import LayerCache
from callsheet.managers.sandbox.provisioning.snapshots import KEY_PREFIX, KeptSetUp, read_note

# Every heartbeat tells them.
MOST_TOLD = 64


class KeptSetUps:
    """The set-ups whose layers are in a cache."""

    def __init__(self, cache: LayerCache) -> None:
        """Blocks: reads what an earlier process noted."""
        self._cache = cache
        notes = {key: read_note(note) for key, note in cache.notes().items() if key.startswith(KEY_PREFIX)}
        # By key, the last used one at the end.
        self._kept = {key: note.set_up for key, note in notes.items()}
        self._listeners: list[Callable[[], None]] = []
        self._last_told = self.told()
        cache.on_change(self._on_layer)

    def told(self) -> Sequence[KeptSetUp]:
        """Those that the scheduler is to hear of: the ones that were used last."""
        return list(self._kept.values())[-MOST_TOLD:]

    def on_change(self, listener: Callable[[], None]) -> None:
        """Takes a function to call, on the event loop, when `told` has others than before."""
        self._listeners.append(listener)

    def use(self, key: str, kept: KeptSetUp) -> None:
        """Notes that a layer was made, or that a sandbox begins with it."""
        self._kept.pop(key, None)
        if key in self._cache:
            self._kept[key] = kept
        self._tell()

    def _on_layer(self, key: str) -> None:
        if key not in self._cache and self._kept.pop(key, None) is not None:
            self._tell()

    def _tell(self) -> None:
        before, self._last_told = self._last_told, self.told()
        if set(before) != set(self._last_told):
            for listener in self._listeners:
                listener()
