"""Removes directories with what untrusted code left in them: trees of any depth, and files that refuse it."""

from __future__ import annotations

import os
from pathlib import Path

import structlog
from callsheet.managers.sandbox.agent.trees import DIRECTORY, remove_tree

_log = structlog.get_logger(__name__)


def remove_directory(path: Path) -> None:
    """Removes a directory with all that is in it, if it is there; what cannot be removed is logged. Blocks."""
    try:
        parent = os.open(path.parent, DIRECTORY)
        try:
            remove_tree(parent, path.name)
        finally:
            os.close(parent)
    except FileNotFoundError:
        return
    except OSError as error:
        _log.warning("directory_not_removed", directory=str(path), error=str(error))
