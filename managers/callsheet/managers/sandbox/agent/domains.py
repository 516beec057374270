"""Landlock domains. Each command begins one of its own, which keeps it out of every process beside and above it.

Landlock lets a process look into another one (its memory, descriptors, environment and directories in /proc) only if
that one is in the same domain or below it. All processes of a sandbox have one user, so nothing else keeps what an
earlier command left away from a later one. Signals pass: who has a process's id may end it.

Nothing else changes for a command. A domain that handles files at all refuses to move them between directories unless a
rule allows it, so that is what is handled, and it is allowed everywhere.
"""

from __future__ import annotations

import errno
import os
import sys

from .paths import RefusedJobError
from .slim import call

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
ASK_VERSION = 1
PATH_BENEATH = 1
MOVE = 1 << 13
# The first version that can allow moves between directories (Linux 5.19).
LEAST_VERSION = 2


class Domains:
    """Makes domains.

    Attributes:
        version: Of the kernel's Landlock; 0 where it cannot make such domains, and none are made.
    """

    def __init__(self) -> None:
        self.version = 0
        self.ruleset = -1
        version = call("syscall", CREATE_RULESET, None, 0, ASK_VERSION)
        if version < LEAST_VERSION:
            return
        handled = MOVE.to_bytes(8, sys.byteorder)
        self.ruleset = call("syscall", CREATE_RULESET, handled, len(handled), 0)
        root = os.open("/", os.O_PATH | os.O_CLOEXEC)
        try:
            rule = handled + root.to_bytes(4, sys.byteorder)
            if self.ruleset >= 0 and call("syscall", ADD_RULE, self.ruleset, PATH_BENEATH, rule, 0) == 0:
                self.version = version
        finally:
            os.close(root)

    def begin(self) -> None:
        """Moves this process into a new domain, where there are any. Raises RefusedJobError."""
        if self.version and call("syscall", RESTRICT_SELF, self.ruleset, 0) != 0:
            raise RefusedJobError("domain", errno.EPERM)


class NoDomains(Domains):
    """Makes none."""

    def __init__(self) -> None:
        self.version = 0
