"""Filters of system calls that commands install themselves.

They are compiled into memory that has one limit for the machine, and nothing can be started in a sandbox without some.
A filter lives as long as any thread that has it, so threads are looked at; one that several have counts for each.
"""

from __future__ import annotations

import os

# A program and its helpers have a few each.
MOST_FILTERS = 64
NAME = b"Seccomp_filters:"


class Filters:
    """Counts those of commands."""

    def __init__(self) -> None:
        """Must be made when all filters are installed that this process is to have: all others have them as well."""
        self.own = filters_of("self")

    def count(self) -> int | None:
        """Returns how many the threads of the sandbox have of their own; None where the kernel does not tell."""
        if self.own is None:
            return None
        found = 0
        for process in filter(str.isdigit, os.listdir("/proc")):
            try:
                threads = os.listdir(f"/proc/{process}/task")
            except OSError:
                # It has ended.
                continue
            found += sum((filters_of(thread) or self.own) - self.own for thread in threads)
        return found


def filters_of(thread: str) -> int | None:
    """Returns how many a thread has; None if it has ended, or the kernel does not tell."""
    try:
        with open(f"/proc/{thread}/status", "rb") as file:
            return next((int(line.split()[1]) for line in file if line.startswith(NAME)), None)
    except OSError:
        return None
