"""Images that come to nodes from one registry."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from callsheet.benchmarks.simulator.events import EventQueue

_Copy = tuple[str, str]  # node, image


class Registry:
    """Pulls an image once per node; serves a few pulls at once, others wait in line.

    Args:
        pull_s: Seconds of a pull; at 0 every node has every image.
        pulls_at_once: Over all nodes.
        events: Virtual time.
    """

    def __init__(self, pull_s: float, pulls_at_once: int, events: EventQueue) -> None:
        self._pull_s = pull_s
        self._free = pulls_at_once
        self._events = events
        self._there: set[_Copy] = set()
        self._wanted: dict[_Copy, list[Callable[[], None]]] = {}
        self._line: deque[_Copy] = deque()

    def fetch(self, node: str, image: str, then: Callable[[], None]) -> None:
        """Calls `then` when the image is on the node, at once if it is there already."""
        copy = (node, image)
        if not image or self._pull_s <= 0 or copy in self._there:
            then()
        elif copy in self._wanted:
            self._wanted[copy].append(then)
        else:
            self._wanted[copy] = [then]
            self._line.append(copy)
            self._pull()

    def _pull(self) -> None:
        while self._free and self._line:
            self._free -= 1
            self._events.at(self._events.now + self._pull_s, self._pulled, self._line.popleft())

    def _pulled(self, copy: _Copy) -> None:
        self._free += 1
        self._there.add(copy)
        for then in self._wanted.pop(copy):
            then()
        self._pull()
