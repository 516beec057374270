"""The bare tool: a first process in namespaces of its own, without an agent, limits, accounting or service.

Without an agent there is no way to run a second command in a living sandbox: each is a new one.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from callsheet.managers.sandbox.bubblewrap import find_bwrap
from callsheet.managers.sandbox.settings import POOL_UID_BASE, Isolation

_WAIT_S = 60.0
_ECHO = b"here\n"


class BareToolError(Exception):
    """The bare tool did not do what was asked."""


@dataclass(frozen=True, slots=True)
class _Start:
    """How to start a process: without `user`, as the one of this process."""

    arguments: Sequence[str]
    program: str | None = None
    environment: Mapping[str, str] | None = None
    user: int | None = None
    inherited: Sequence[int] = ()

    def begin(self) -> subprocess.Popen[bytes]:
        groups: Sequence[int] | None = [] if self.user is not None else None
        return subprocess.Popen(
            self.arguments,
            executable=self.program,
            env=self.environment,
            user=self.user,
            group=self.user,
            extra_groups=groups,
            pass_fds=self.inherited,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )


class BareTool(Protocol):
    """Says how to start a program as the tool alone does."""

    @contextmanager
    def starting(self, *program: str) -> Iterator[_Start]:
        """Prepares one start; what it needs is kept for the length of the block."""


class BareProcess:
    """No isolation: a plain process."""

    @contextmanager
    def starting(self, *program: str) -> Iterator[_Start]:
        """See `BareTool`."""
        yield _Start(program)


class BareBubblewrap:
    """bwrap as one would call it by hand, as another user where this one is root."""

    def __init__(self) -> None:
        """Raises BareToolError where there is no bwrap."""
        found = find_bwrap()
        if found is None:
            raise BareToolError("there is no bwrap program")
        self._bwrap = found
        self._user = POOL_UID_BASE if os.geteuid() == 0 else None

    @contextmanager
    def starting(self, *program: str) -> Iterator[_Start]:
        """See `BareTool`."""
        # By descriptor: another user might not be allowed into the directories above it.
        descriptor = os.open(self._bwrap, os.O_RDONLY)
        try:
            yield _Start(
                arguments=["bwrap", *_options(), *program],
                program=f"/proc/self/fd/{descriptor}",
                user=self._user,
                inherited=[descriptor],
            )
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


def bare_tool(isolation: Isolation) -> BareTool:
    """Returns the bare tool of an isolation."""
    return BareProcess() if isolation is Isolation.NONE else BareBubblewrap()


def create_s(tool: BareTool) -> float:
    """Seconds from the start of a program that stays until it answers."""
    with tool.starting("cat") as start:
        began = time.perf_counter()
        with start.begin() as process:
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


def exec_s(tool: BareTool) -> float:
    """Seconds from the start of `true` to its end."""
    with tool.starting("true") as start:
        began = time.perf_counter()
        with start.begin() as process:
            status = process.wait(_WAIT_S)
            took = time.perf_counter() - began
    if status != 0:
        raise BareToolError(f"true ended with {status}")
    return took
