"""Finds what packages offer by name through entry points: kinds of manager, drivers of engines."""

from __future__ import annotations

import functools
import sys
from dataclasses import dataclass
from importlib import metadata
from typing import Generic, TypeVar

T = TypeVar("T")


class PluginError(ValueError):
    """A plugin asked for by name is not installed, or is not of the kind that its entry point names."""


@dataclass(frozen=True, slots=True)
class PluginGroup(Generic[T]):
    """An entry point group. Callsheet's own parts are found in it just as others'.

    Attributes:
        name: The group, for instance "callsheet.managers".
        what: What one of them is, for messages.
        offered: The type of all of them.
    """

    name: str
    what: str
    offered: type[T]

    def names(self) -> tuple[str, ...]:
        """The names of all that are installed, in order; none is loaded for it."""
        return tuple(sorted(self._entries()))

    def get(self, name: str) -> T:
        """Loads one.

        Raises:
            PluginError: There is none of this name, or it is of another type.
        """
        entries = self._entries()
        if name not in entries:
            raise PluginError(f"{self.what}: {name!r} is none of {', '.join(sorted(entries))}")
        found = entries[name].load()
        if not isinstance(found, self.offered):
            raise PluginError(f"{self.what}: {entries[name].value!r} must be of type {self.offered.__name__}")
        return found

    def _entries(self) -> dict[str, metadata.EntryPoint]:
        return {entry.name: entry for entry in _installed(self.name, tuple(sys.path))}


@functools.cache
def _installed(group: str, path: tuple[str, ...]) -> metadata.EntryPoints:
    """The entry points of a group below a path, read once: each look reads a file of every distribution."""
    return metadata.entry_points(group=group)
