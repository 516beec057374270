"""Binds a process to the process that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PARENT_VARIABLE = "CALLSHEET_PARENT_PID"
READY_VARIABLE = "CALLSHEET_READY_FD"

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Asks the kernel for SIGKILL when the thread that started this process ends; exits if it already has."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)
