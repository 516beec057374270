"""The parent's half of process supervision: start a Python module, wait until it says ready, stop it.

For anything that starts our own processes: `callsheet up`, launched servers, the demo, benchmarks and tests.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import anyio
import anyio.abc
from callsheet.managers.supervision.bounded_log import LoggedOutput
from callsheet.managers.supervision.parent import PARENT_VARIABLE, READY_VARIABLE

_LOG_TAIL_BYTES = 2000
_KILL_WAIT_S = 10.0


class ProcessFailedError(Exception):
    """A process ended, or stayed silent, before it was ready; the message says which and shows its last words."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """How to start one process.

    Attributes:
        name: For messages.
        module: Run as `python -m module`.
        arguments: Its command line.
        environment: Added to this process's environment; all of it for a guard.
        log_path: Standard output and error go to a bounded log there; None passes both on to this process's standard
            error.
        ready_timeout_s: Seconds from the start until it must serve.
        is_own: Whether it is a process of Callsheet's, which says ready. Otherwise it is a guard (see `guard`) of a
            program that does not, and ends once its standard input does.
    """

    name: str
    module: str
    arguments: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    log_path: Path | None = None
    ready_timeout_s: float = 60.0
    is_own: bool = True


def command_module() -> str:
    """The module that runs the `callsheet` command, as its installation names it."""
    (command,) = metadata.entry_points(group="console_scripts", name="callsheet")
    return command.module


class ChildProcess:
    """A running process; one of Callsheet's own has said ready."""

    def __init__(self, spec: ProcessSpec, process: anyio.abc.Process, facts: Mapping[str, str]) -> None:
        self.spec = spec
        self.facts = facts
        self._process = process

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, negative for a signal; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Returns the exit code once it has ended."""
        return await self._process.wait()

    def kill(self) -> None:
        """Sends SIGKILL; no error if it has ended."""
        if self._process.returncode is None:
            self._process.kill()


@asynccontextmanager
async def run_process(spec: ProcessSpec, grace_s: float = 10.0) -> AsyncIterator[ChildProcess]:
    """Runs a process for the length of a `with` block, from ready to stopped.

    Args:
        spec: What to run.
        grace_s: Seconds between SIGTERM and SIGKILL at the end of the block.

    Raises:
        ProcessFailedError: It did not become ready.
    """
    output = LoggedOutput(spec.log_path) if spec.log_path is not None else None
    try:
        ready_reader, ready_writer = os.pipe()
        try:
            with anyio.CancelScope(shield=True):  # One that is half open would be left running.
                process = await _open(spec, ready_writer, output)
        except BaseException:
            os.close(ready_reader)
            raise
        finally:
            os.close(ready_writer)
        try:
            facts = await _wait_ready(spec, process, ready_reader, output)
            yield ChildProcess(spec, process, facts)
        finally:
            with anyio.CancelScope(shield=True):
                await _stop(process, grace_s)
                if not spec.is_own:
                    send_to_group(process.pid, signal.SIGKILL)
                await process.aclose()
    finally:
        if output is not None:
            output.close()


async def _open(spec: ProcessSpec, ready_writer: int, output: LoggedOutput | None) -> anyio.abc.Process:
    told = {PARENT_VARIABLE: str(os.getpid()), READY_VARIABLE: str(ready_writer), "PYTHONUNBUFFERED": "1"}
    printed = output.write_end if output is not None else os.dup(2)
    try:
        return await anyio.open_process(
            [sys.executable, "-m", spec.module, *spec.arguments],
            stdin=subprocess.DEVNULL if spec.is_own else subprocess.PIPE,
            stdout=printed,
            stderr=printed,
            env={**os.environ, **spec.environment, **told} if spec.is_own else spec.environment,
            # Ctrl-C in a terminal goes to a whole group; the parent alone decides the order in which children stop.
            start_new_session=True,
            pass_fds=(ready_writer,) if spec.is_own else (),
        )
    finally:
        os.close(printed)


async def _wait_ready(
    spec: ProcessSpec, process: anyio.abc.Process, descriptor: int, output: LoggedOutput | None
) -> Mapping[str, str]:
    """Reads the one line that the child writes when it serves; an empty line means that it has closed the pipe."""
    if not spec.is_own:
        os.close(descriptor)
        return {}
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
    )
    line = b""
    try:
        with anyio.move_on_after(spec.ready_timeout_s) as deadline:
            line = await reader.readline()
            if not line:
                await process.wait()
    finally:
        transport.close()
    if line:
        facts: dict[str, str] = json.loads(line)
        return facts
    if output is not None:
        output.drain()
    if deadline.cancelled_caught:
        raise ProcessFailedError(f"{spec.name} was not ready after {spec.ready_timeout_s:g} s{_last_words(spec)}")
    raise ProcessFailedError(f"{spec.name} ended before it was ready ({describe_exit(process)}){_last_words(spec)}")


async def _stop(process: anyio.abc.Process, grace_s: float) -> None:
    if process.returncode is None:
        process.terminate()
        with anyio.move_on_after(grace_s):
            await process.wait()
    if process.returncode is None:
        process.kill()
        with anyio.move_on_after(_KILL_WAIT_S):
            await process.wait()


def send_to_group(leader: int, number: signal.Signals) -> None:
    """Sends a signal to a group of processes; no error if it has ended."""
    try:
        os.killpg(leader, number)
    except ProcessLookupError:
        return


def describe_exit(process: anyio.abc.Process | ChildProcess) -> str:
    """How a process ended, for messages, for instance "exit code 1" or "signal SIGKILL"."""
    code = process.returncode
    if code is None:
        return "still running"
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def _last_words(spec: ProcessSpec) -> str:
    if spec.log_path is None or not spec.log_path.exists():
        return ""
    with spec.log_path.open("rb") as log:
        log.seek(max(0, spec.log_path.stat().st_size - _LOG_TAIL_BYTES))
        tail = log.read().decode(errors="replace").strip()
    return f"; the end of {spec.log_path}:\n{tail}" if tail else ""
