"""A program that runs one other program and ends with it, its parent, and nothing of it left.

    python -m callsheet.managers.supervision.guard ORDER

The order is a JSON object (see `GuardOrder`). A program of somebody else's may start processes that leave its session,
or that outlive it. The guard adopts them. It ends all of them when the program ends, on SIGTERM, and when its standard
input ends, which its parent holds open: also a parent that was killed leaves nothing behind.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from callsheet.managers.supervision.parent import die_with_parent

_PR_SET_CHILD_SUBREAPER = 36
_KILL_WAIT_S = 10.0
_STOP_COMMAND_S = 30.0
_LOOK_S = 0.05
_CHUNK = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardOrder:
    """An order to a guard: the program that it runs.

    Attributes:
        command: The program.
        stop_command: Run before it and after its end, for what is no process of its own; empty for nothing.
        grace_s: Seconds between SIGTERM and SIGKILL.
    """

    command: tuple[str, ...]
    stop_command: tuple[str, ...] = ()
    grace_s: float = 5.0

    def encode(self) -> str:
        """Returns it as the guard's argument."""
        return json.dumps(asdict(self))


class Guard:
    """Runs the program. Must be the only thing that its process does.

    Args:
        order: What to run.
    """

    def __init__(self, order: GuardOrder) -> None:
        self._order = order
        self._ending = False
        self._process: subprocess.Popen[bytes] | None = None
        self._woken, wakes = os.pipe()
        for descriptor in (self._woken, wakes):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._end())
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> int:
        """Returns the program's exit code, negative for a signal; 0 if it was ended from outside."""
        self._run_stop_command(gives_way=True)
        if self._ending:
            self._run_stop_command()
            return 0
        _note("starts")
        parent = os.getpid()
        try:
            process = self._process = subprocess.Popen(
                self._order.command,
                stdin=subprocess.DEVNULL,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 - this process has no other thread
            )
        except OSError as error:
            _note(f"cannot be started: {error}")
            self._run_stop_command()
            return 127
        self._wait_until(lambda: self._ending or process.poll() is not None)
        code = 0 if self._ending else process.returncode
        self._end_family(process)
        self._run_stop_command()
        return code

    def _end(self) -> None:
        self._ending = True

    def _end_family(self, process: subprocess.Popen[bytes]) -> None:
        if process.poll() is None:
            # To the program's group, which is this process's own: its handler has done what it had to do.
            os.killpg(0, signal.SIGTERM)
        self._wait_until(lambda: process.poll() is not None, self._order.grace_s)
        self._wait_until(lambda: _all_killed(process), _KILL_WAIT_S)
        self._process = None

    def _run_stop_command(self, *, gives_way: bool = False) -> None:
        if not self._order.stop_command:
            return
        try:
            removing = subprocess.Popen(self._order.stop_command, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            _note(f"the stop command failed: {error}")
            return
        self._wait_until(lambda: removing.poll() is not None or (gives_way and self._ending), _STOP_COMMAND_S)
        if removing.poll() is None:
            _note("the stop command was cut short")
            os.killpg(removing.pid, signal.SIGKILL)
            removing.wait(_KILL_WAIT_S)

    def _wait_until(self, condition: Callable[[], bool], limit_s: float = float("inf")) -> None:
        until = time.monotonic() + limit_s
        while not condition() and time.monotonic() < until:
            watched = [self._woken, *([] if self._ending else [0])]
            readable, _, _ = select.select(watched, [], [], _LOOK_S if limit_s < float("inf") else None)
            if self._woken in readable:
                os.read(self._woken, _CHUNK)
                if self._process is not None:
                    _reap(self._process)
            if 0 in readable and not os.read(0, _CHUNK):
                self._end()


def _all_killed(process: subprocess.Popen[bytes]) -> bool:
    """Kills whatever is left, and collects what has ended; whether nothing is."""
    below = descendants(os.getpid())
    for pid in below:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    _reap(process)
    return not below


def _reap(process: subprocess.Popen[bytes] | None) -> None:
    """Collects what has ended: the program, and whatever was adopted."""
    if process is not None:
        process.poll()
    try:
        while (child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if process is not None and child.si_pid == process.pid:
                return  # It ended meanwhile, and is collected at the next look.
            os.waitpid(child.si_pid, os.WNOHANG)
    except ChildProcessError:
        return


def descendants(ancestor: int) -> set[int]:
    """Returns the processes below one that have not ended; nothing where the system does not tell."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            # The name of the program may hold anything, and stands in parentheses.
            state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
        except OSError:
            continue  # It has ended meanwhile.
        if state not in "ZX":
            children.setdefault(int(parent), []).append(int(entry.name))
    found: set[int] = set()
    line = [ancestor]
    while line:
        below = children.get(line.pop(), [])
        found.update(below)
        line.extend(below)
    return found


def _note(text: str) -> None:
    """Notes something in the log."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    os.write(2, f"--- callsheet {stamp}: {text}\n".encode())


def main() -> None:
    """Guards a program, and ends as it did."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    code = Guard(GuardOrder(**json.loads(sys.argv[1]))).run()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
