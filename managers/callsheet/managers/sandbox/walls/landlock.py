"""Landlock in this kernel: its version, and the capabilities that go with it."""

from __future__ import annotations

import ctypes
from functools import cache

# The same number on every architecture.
_CREATE_RULESET = 444
_ASK_VERSION = 1
# The first that forbids nothing which commands do, see `agent/domains.py`.
_LEAST_VERSION = 2


@cache
def landlock_version() -> int:
    """Returns the version of the kernel's Landlock; 0 where it is off or too old to be used."""
    library = ctypes.CDLL(None, use_errno=True)
    version = int(library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION)))
    return version if version >= _LEAST_VERSION else 0


def landlock_capabilities() -> dict[str, str]:
    """Returns what a registration says of it: "yes" or "no", whether each command is in a domain of its own."""
    return {"landlock": "yes" if landlock_version() else "no"}
