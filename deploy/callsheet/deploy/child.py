"""The child's half of process supervision: die with the parent, and say when ready.

The parent (see `supervision/processes.py`) passes two environment variables. They are taken out of the environment at
once, so that what the child starts (sandboxes, engines) never sees them.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from typing import Final

from callsheet.managers.supervision.parent import PARENT_VARIABLE, READY_VARIABLE, die_with_parent

TIE_VARIABLE: Final = "CALLSHEET_TIE_FD"
"""Names the descriptor of a pipe's end. This process drains, as on SIGTERM, once the other end is closed."""


class ParentLink:
    """Link of a child process to its parent; without a parent every method does nothing."""

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
        tie = os.environ.pop(TIE_VARIABLE, "")
        if tie:
            os.set_inheritable(int(tie), False)
            threading.Thread(target=_drain_at_end_of, args=(int(tie),), daemon=True, name="tie").start()
        if parent:
            die_with_parent(int(parent))
        if not descriptor:
            return cls(None)
        os.set_inheritable(int(descriptor), False)
        return cls(int(descriptor))

    def report_ready(self, **facts: str) -> None:
        """Reports to the parent, once, that this process serves; later calls do nothing."""
        descriptor, self._ready_descriptor = self._ready_descriptor, None
        if descriptor is None:
            return
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(json.dumps(facts).encode() + b"\n")


def _drain_at_end_of(descriptor: int) -> None:
    os.read(descriptor, 1)
    os.kill(os.getpid(), signal.SIGTERM)
