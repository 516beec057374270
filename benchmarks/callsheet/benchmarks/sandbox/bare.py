"""The bare tool: a first process in namespaces of its own, without an agent, limits, accounting or service.

Without an agent there is no way to run a second command in a living sandbox: each is a new one.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from callsheet.managers.sandbox.isolation.bubblewrap import find_bwrap
from callsheet.managers.sandbox.settings import POOL_UID_BASE, Isolation

_WAIT_S = 60.0
_ECHO = b"here\n"


class BareToolError(Exception):
    """The bare tool did not do what was asked."""


@contextmanager
def _started(isolation: Isolation, *program: str) -> Iterator[subprocess.Popen[bytes]]:
    """Starts a program as the tool alone does: bwrap as one would call it by hand, or a plain process."""
    if isolation is Isolation.NONE:
        with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
            yield process
        return
    found = find_bwrap()
    if found is None:
        raise BareToolError("there is no bwrap program")
    # By descriptor: another user, which it is where this one is root, might not be allowed into the directories above.
    descriptor = os.open(found, os.O_RDONLY)
    user = POOL_UID_BASE if os.geteuid() == 0 else None
    try:
        with subprocess.Popen(
            ["bwrap", *_options(), *program],
            executable=f"/proc/self/fd/{descriptor}",
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
            pass_fds=[descriptor],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        ) as process:
            yield process
    finally:
        os.close(descriptor)


def _options() -> Iterator[str]:
    yield from ("--unshare-all", "--cap-drop", "ALL", "--die-with-parent", "--new-session", "--ro-bind", "/usr", "/usr")
    for name in ("bin", "lib", "lib64"):
        path = Path("/", name)
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    yield from ("--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp", "--tmpfs", "/work", "--chdir", "/work", "--")


def create_s(isolation: Isolation) -> float:
    """Seconds from the start of a program that stays until it answers."""
    began = time.perf_counter()
    with _started(isolation, "cat") as process:
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        process.stdin.write(_ECHO)
        answer = process.stdout.read(len(_ECHO))
        took = time.perf_counter() - began
        process.stdin.close()
        status = process.wait(_WAIT_S)
    if answer != _ECHO or status != 0:
        raise BareToolError(f"cat answered {answer!r} and ended with {status}")
    return took


def exec_s(isolation: Isolation) -> float:
    """Seconds from the start of `true` to its end."""
    began = time.perf_counter()
    with _started(isolation, "true") as process:
        status = process.wait(_WAIT_S)
        took = time.perf_counter() - began
    if status != 0:
        raise BareToolError(f"true ended with {status}")
    return took
