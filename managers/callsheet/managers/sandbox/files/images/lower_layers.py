"""Finds entries that can be seen through a stack of unpacked layers, without mounting it. Standard library only."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

OPAQUE_MARKS = ("trusted.overlay.opaque", "user.overlay.opaque")


class LowerLayers:
    """Layers on which another one is to lie, the lowest first."""

    def __init__(self, layers: Sequence[str]) -> None:
        self._upwards_down = tuple(reversed(layers))

    def find(self, path: str) -> str | None:
        """Returns where the entry of a path lies; None if nothing is seen there.

        Args:
            path: Relative; links in the place of its directories are not followed.
        """
        names = path.split("/")
        for layer in self._upwards_down:
            found, hides = _look(layer, names)
            if found or hides:
                return found
        return None


def is_deleted(status: os.stat_result) -> bool:
    """Returns whether an entry is the mark that hides the entry of its name below."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(directory: str) -> bool:
    """Returns whether a directory hides the one below it."""
    for mark in OPAQUE_MARKS:
        try:
            if os.getxattr(directory, mark, follow_symlinks=False) == b"y":
                return True
        except OSError:
            # No such mark, or one that only root may read and so has none here.
            continue
    return False


def _look(layer: str, names: Sequence[str]) -> tuple[str | None, bool]:
    """Returns the place of an entry in one layer, and whether it hides those of the layers below."""
    place, hides = layer, False
    for number, name in enumerate(names, start=1):
        place = f"{place}/{name}"
        try:
            status = os.lstat(place)
        except FileNotFoundError:
            return None, hides
        if is_deleted(status):
            return None, True
        if number == len(names):
            return place, True
        if not stat.S_ISDIR(status.st_mode):
            return None, True
        hides = hides or is_opaque(place)
    return None, hides
