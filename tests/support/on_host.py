"""Runs a module on a host of `hosts`: `python -m tests.support.on_host NETWORK_NAMESPACE CLOCK_S MODULE ARGUMENT...`.

`time.time` is ahead by CLOCK_S seconds there: another clock for all of a host takes another machine.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import sys
import time

_CLONE_NEWNET = 0x40000000


def enter(namespace: str) -> None:
    """Moves this thread, and what it starts, into a network namespace, by its path."""
    descriptor = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns", namespace)
    finally:
        os.close(descriptor)


def main() -> None:
    """Enters the namespace, and becomes the module."""
    _, namespace, clock_s, module, *arguments = sys.argv
    enter(namespace)
    if int(clock_s):
        _set_clock(int(clock_s))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _set_clock(ahead_s: int) -> None:
    now = time.time

    def shown() -> float:
        # gRPC makes deadlines of it, and compares them with the machine's own clock.
        asks: str = sys._getframe(1).f_globals["__name__"]
        return now() if asks.startswith("grpc") else now() + ahead_s

    time.time = shown


if __name__ == "__main__":
    main()
