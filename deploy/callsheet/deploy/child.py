"""The child's half of process supervision: die with the parent, and say when ready.

The parent (see `callsheet.deploy.processes`) passes two environment variables. They are taken out of the environment at
once, so that what the child starts (sandboxes, engines) never sees them.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

PARENT_VARIABLE = "CALLSHEET_PARENT_PID"
READY_VARIABLE = "CALLSHEET_READY_FD"

_PR_SET_PDEATHSIG = 1


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
            _die_with_parent(int(parent))
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


def _die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the thread that started this process ends; exits if it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)
