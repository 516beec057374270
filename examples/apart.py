"""Runs a program apart from the tests that start it, so that it cannot write their memory, their report or themselves.

A file for a reward: bring it in `files` beside the tests. It needs Linux 5.19 with Landlock and nothing but Python.
From Linux 6.12 on the program cannot send them signals either.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Sequence
from typing import Any

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _BELOW_A_PATH, _NO_NEW_PRIVILEGES = 1, 1, 38
# To write, remove, make and move files; the last, to truncate them, came with the third version.
_WRITE, _TRUNCATE = 1 << 1, 1 << 14
# Signals to processes outside, and abstract sockets of theirs; they came with the sixth version.
_SCOPED, _SCOPES = 6, 1 << 0 | 1 << 1
_CHANGE = _WRITE | sum(1 << bit for bit in range(4, 14))
_system = ctypes.CDLL(None, use_errno=True)


def run_apart(arguments: Sequence[str], directory: str, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Runs a program as `subprocess.run` does. It writes below one directory only, and opens no other process.

    With an older kernel than Linux 6.12 it can still send signals to the tests.

    Args:
        arguments: The program and its arguments.
        directory: Where it begins, and what it may change: nothing that the tests trust.
        **options: Of `subprocess.run`.

    Raises:
        OSError: The kernel has no Landlock, or an old one; the program has not begun.
    """
    version = _system.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION))
    if version < 2:
        raise OSError("this kernel has no Landlock of version 2 or later")
    handled = _CHANGE | (_TRUNCATE if version > 2 else 0)
    attributes = struct.pack("=QQQ", handled, 0, _SCOPES) if version >= _SCOPED else struct.pack("=Q", handled)
    ruleset = _call(_CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    try:
        _allow(ruleset, directory, handled)
        _allow(ruleset, os.devnull, _WRITE)
        return subprocess.run(arguments, cwd=directory, preexec_fn=lambda: _begin(ruleset), check=False, **options)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        _call(_ADD_RULE, ruleset, _BELOW_A_PATH, struct.pack("=Qi", rights, place), 0)
    finally:
        os.close(place)


def _begin(ruleset: int) -> None:
    _system.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    _call(_RESTRICT_SELF, ruleset, 0)


def _call(number: int, *arguments: Any) -> int:
    result = int(_system.syscall(number, *arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
