"""The child's half of process supervision: die with the parent, and say when ready.

The parent (see `supervision/processes.py`) passes two environment variables. They are taken out of the environment at
once, so that what the child starts (sandboxes, engines) never sees them.
"""

from __future__ import annotations

import json
import os

from callsheet.managers.supervision.parent import PARENT_VARIABLE, READY_VARIABLE, die_with_parent


class ParentLink:
    """What a child holds of its parent; without a parent every method does nothing."""

    def __init__(self, ready_descriptor: int | None) -> None:
        self._ready_descriptor = ready_descriptor

    @classmethod
    def adopt(cls) -> ParentLink:
        """Takes the parent's variables out of the environment and binds this process's life to the parent's.

        Call it once, early, before other threads or processes are started. If the parent is already gone the process
        exits.
        """
        parent = os.environ.pop(PARENT_VARIABLE, "")
        descriptor = os.environ.pop(READY_VARIABLE, "")
        if parent:
            die_with_parent(int(parent))
        if not descriptor:
            return cls(None)
        os.set_inheritable(int(descriptor), False)
        return cls(int(descriptor))

    def report_ready(self, **facts: str) -> None:
        """Tells the parent, once, that this process serves; later calls do nothing."""
        descriptor, self._ready_descriptor = self._ready_descriptor, None
        if descriptor is None:
            return
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(json.dumps(facts).encode() + b"\n")
