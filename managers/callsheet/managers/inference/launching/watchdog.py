"""A process that starts an engine's server, starts it again when it ends, and ends all of it with its manager.

Its input is the manager's orders. It breaks off when the manager wants that, or was killed. Then everything that the
server started is ended: first asked, then killed, also what has left the server's group. The watchdog needs the
standard library alone, so that it is small and hard to break.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from callsheet.managers.inference.launching.bounded_log import BoundedLog
from callsheet.managers.inference.launching.command import fill_in
from callsheet.managers.inference.launching.family import (
    adopt_orphans,
    descendants,
    dying_with_parent,
    send,
    send_to_group,
)
from callsheet.managers.inference.launching.ports import free_port
from callsheet.managers.inference.launching.standing import (
    ServerPhase,
    ServerStanding,
    begun,
    ended,
    now_serves,
    overdue_at,
)
from callsheet.managers.inference.launching.wire import LaunchOrder, decode_order, encode_standing

_KILL_WAIT_S = 10.0
_STOP_COMMAND_S = 30.0
_CHUNK = 65_536
_LOOK_S = 0.05


class Watchdog:
    """Keeps one server running.

    Args:
        order: What to do.
        orders: Descriptor of what the manager says.
        reports: Descriptor of what it is told.
        woken: Descriptor that can be read when a signal has come.
    """

    def __init__(self, order: LaunchOrder, orders: int, reports: int, woken: int) -> None:
        self._order = order
        self._orders = orders
        self._reports = reports
        self._woken = woken
        self._standing = ServerStanding()
        self._log = BoundedLog(Path(order.log_path))
        self._said = b""
        self._ending = False
        self._hung_start = 0
        self._stop_due = True
        self._process: subprocess.Popen[bytes] | None = None
        self._output = -1

    def end(self) -> None:
        """Has it end everything, and then itself."""
        self._ending = True

    def run(self) -> None:
        """Runs until the manager is gone, or until the server is given up."""
        try:
            while not self._ending and self._standing.phase is not ServerPhase.GIVEN_UP:
                self._wait(self._advance())
        finally:
            self._end_family()
            self._log.close()

    def _advance(self) -> float | None:
        """Does what is due now; returns when something else will be."""
        now = time.monotonic()
        if self._process is None:
            if now >= self._standing.next_start:
                self._start()
                return now
            return self._standing.next_start
        code = self._process.poll()
        due = overdue_at(self._standing, self._order.rule)
        if code is not None:
            self._settle(_how(code))
            return now
        if self._standing.phase is ServerPhase.SERVING and self._hung_start == self._standing.starts:
            self._settle(f"it did not serve for {self._order.rule.hung_after_s:g} s")
            return now
        if due is not None and now >= due:
            self._settle(f"it was not ready within {self._order.rule.start_timeout_s:g} s")
            return now
        return due

    def _start(self) -> None:
        self._run_stop_command(gives_way=True)
        if self._ending:
            return
        self._stop_due = True
        port = free_port()
        output, theirs = os.pipe()
        command = fill_in(self._order.command, port=port, name=self._order.name)
        self._note(f"start {self._standing.starts + 1}, port {port}")
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                env=self._order.environment,
                start_new_session=True,
                preexec_fn=dying_with_parent(),  # noqa: PLW1509 - there are no threads here
            )
        except OSError as error:
            os.close(output)
            self._tell(ended(self._standing, str(error), time.monotonic(), self._order.rule))
            return
        finally:
            os.close(theirs)
        os.set_blocking(output, False)
        self._output = output
        self._tell(begun(self._standing, time.monotonic(), port=port, pid=self._process.pid))

    def _settle(self, why: str) -> None:
        self._end_family()
        self._tell(ended(self._standing, why, time.monotonic(), self._order.rule))
        self._note(f"ended: {why}")

    def _end_family(self) -> None:
        """Ends the server and everything below: what still runs is asked first, unless the server itself is gone.

        Also where no server runs, something may be left of the one before.
        """
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            send_to_group(process.pid, signal.SIGTERM)
            self._wait_until(lambda: process.poll() is not None, self._order.rule.stop_grace_s)
        self._wait_until(lambda: self._all_killed(process), _KILL_WAIT_S)
        self._drain_output()
        self._run_stop_command()

    def _all_killed(self, process: subprocess.Popen[bytes] | None) -> bool:
        if process is not None:
            send_to_group(process.pid, signal.SIGKILL)
        below = descendants(os.getpid())
        for pid in below:
            send(pid, signal.SIGKILL)
        _reap(process)
        return not below and (process is None or process.poll() is not None)

    def _wait_until(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Waits for a condition, and takes what is printed and what the manager says meanwhile."""
        until = time.monotonic() + limit_s
        while not condition() and time.monotonic() < until:
            readable, _, _ = select.select(self._watched, [], [], _LOOK_S)
            self._take(readable)

    def _wait(self, due: float | None) -> None:
        """Waits for the manager, the server, a signal, or a time."""
        wait_s = None if due is None else max(due - time.monotonic(), 0.0)
        readable, _, _ = select.select(self._watched, [], [], wait_s)
        self._take(readable)

    @property
    def _watched(self) -> list[int]:
        # Orders that have come to their end could be read for ever.
        return [self._woken, *([] if self._ending else [self._orders]), *([] if self._output < 0 else [self._output])]

    def _take(self, readable: list[int]) -> None:
        if self._woken in readable:
            os.read(self._woken, _CHUNK)
            if self._process is not None:
                _reap(self._process)
        if self._output in readable:
            self._read_output()
        if self._orders in readable:
            self._hear()

    def _drain_output(self) -> None:
        while self._read_output():
            pass
        self._close_output()

    def _read_output(self) -> bool:
        """Takes a part of what the server has printed; returns whether there may be more."""
        if self._output < 0:
            return False
        try:
            content = os.read(self._output, _CHUNK)
        except BlockingIOError:
            return False
        self._log.write(content)
        if not content:
            # All that could print have closed it. Whether the server has ended its process tells.
            self._close_output()
        return bool(content)

    def _close_output(self) -> None:
        if self._output >= 0:
            os.close(self._output)
            self._output = -1

    def _hear(self) -> None:
        content = os.read(self._orders, _CHUNK)
        if not content:
            self.end()
        *lines, self._said = (self._said + content).split(b"\n")
        for line in lines:
            what, _, start = line.partition(b" ")
            if what == b"hung":
                self._hung_start = int(start)
            elif int(start) == self._standing.starts:
                self._tell(now_serves(self._standing, time.monotonic()))

    def _run_stop_command(self, *, gives_way: bool = False) -> None:
        """Runs the command that removes what is left of a server.

        Args:
            gives_way: It comes before a start. Once everything is to end it is cut short, and run again then.
        """
        if not self._order.stop_command or not (gives_way or self._stop_due):
            return
        command = fill_in(self._order.stop_command, port=self._standing.port, name=self._order.name)
        output, theirs = os.pipe()
        try:
            removing = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=theirs,
                stderr=theirs,
                env=self._order.environment,
                start_new_session=True,
            )
        except OSError as error:
            os.close(output)
            self._note(f"the stop command failed: {error}")
            return
        finally:
            os.close(theirs)
        os.set_blocking(output, False)
        self._output = output
        self._wait_until(lambda: removing.poll() is not None or (gives_way and self._ending), _STOP_COMMAND_S)
        code = removing.poll()
        self._stop_due = code != 0
        if code is None:
            self._note("the stop command was cut short")
            send_to_group(removing.pid, signal.SIGKILL)
            self._wait_until(lambda: removing.poll() is not None, _KILL_WAIT_S)
        self._drain_output()

    def _note(self, text: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._log.write(f"--- callsheet {stamp} {self._order.name}: {text}\n".encode())

    def _tell(self, standing: ServerStanding) -> None:
        if standing == self._standing:
            return
        self._standing = standing
        try:
            os.write(self._reports, encode_standing(standing))
        except OSError:
            self.end()  # Nobody listens any longer.


def _reap(process: subprocess.Popen[bytes] | None) -> None:
    """Takes note of the end of the server, and of processes that were adopted."""
    if process is not None:
        process.poll()
    try:
        while (child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if process is not None and child.si_pid == process.pid:
                return
            os.waitpid(child.si_pid, os.WNOHANG)
    except ChildProcessError:
        return


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def main() -> None:
    """Reads the order from standard input and carries it out."""
    adopt_orphans()
    woken, wakes = os.pipe()
    for descriptor in (woken, wakes):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
    orders, reports = sys.stdin.fileno(), sys.stdout.fileno()
    line = b""
    while not line.endswith(b"\n"):
        content = os.read(orders, 1)
        if not content:
            return
        line += content
    watchdog = Watchdog(decode_order(line), orders, reports, woken)

    def leave(number: int, frame: FrameType | None) -> None:
        watchdog.end()

    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    watchdog.run()


if __name__ == "__main__":
    main()
