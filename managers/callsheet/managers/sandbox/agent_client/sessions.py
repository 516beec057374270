"""Persistent sessions: interpreters that live in a sandbox between actions and run steps one after another."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial

import anyio
from callsheet.managers.sandbox.agent_client.capture import OutputPipe, ReadPipe
from callsheet.managers.sandbox.agent_client.client import AgentJob, AgentJobResult
from callsheet.managers.sandbox.agent_client.command_defaults import merged_environment
from callsheet.managers.sandbox.agent_client.jobs import Process, SandboxJobs
from callsheet.managers.sandbox.agent_client.metering import Meter
from callsheet.managers.sandbox.agent_client.refusals import cannot_begin_session
from callsheet.managers.sandbox.backend import (
    CommandOutcome,
    OutputListener,
    OutputName,
    SessionLanguage,
    SessionUse,
    StepSpec,
)
from callsheet.managers.sandbox.cgroups import CommandLeaf
from callsheet.managers.sandbox.errors import CannotExecuteError, SandboxLostError, StoppedError

# How the steps of a session are told to its interpreter, and how their ends are known. Pure.
#
# An interpreter reads steps from one pipe and says on another that a step ended: the step's marker and its status.
# What a step prints never counts. The marker is random and not known inside before the step's own text has been run,
# so that what runs in a session can at worst spoil the session's own result.
STATUS_DESCRIPTOR = 8
"""Descriptor to which an interpreter reports the end of a step; the steps come on its standard input."""

_INTERRUPTED = 143
_LONGEST_STATUS = 3

# A signal makes the step return: it is read by `.`, and what it waits for is killed by the agent meanwhile.
SHELL_START = f"trap 'return {_INTERRUPTED} 2>/dev/null' USR1\n".encode()
SHELL_ARGUMENTS = (
    "/bin/sh",
    "-c",
    "if command -v bash >/dev/null 2>&1; then exec bash --noprofile --norc -s; fi; exec sh -s",
)

MOST_SESSIONS = 8
# A step that is to end is interrupted for so long before its session is killed.
_INTERRUPT_SECONDS = 1.0
# How long what was killed may take to end.
_END_SECONDS = 1.0


def shell_step(text: str, marker: str, environment: Mapping[str, str] | None = None) -> bytes:
    """Returns what a shell reads to run a step, with variables to export before, which stay.

    The step is a here-document that `.` reads, and not an argument of `eval`: only so can it be made to return, and a
    syntax error does not end a shell that follows POSIX to the letter. Its end does not occur in the text.
    """
    end = f"end-{marker}"
    run = f"command . /dev/fd/7 7<<'{end}' </dev/null\n{text}\n{end}\n"
    # By `command`: a variable that is read-only must not end a shell that follows POSIX to the letter.
    exports = "".join(f"command export {name}={shlex.quote(value)}\n" for name, value in (environment or {}).items())
    return f"{exports}{run}{{ printf '%s %s\\n' {marker} \"$?\" >&{STATUS_DESCRIPTOR}; }} 2>/dev/null\n".encode()


def python_step(text: str, marker: str, environment: Mapping[str, str] | None = None) -> bytes:
    """Returns what `agent/python_session.py` reads to run a step, with variables to set before, which stay.

    A line with the marker and two lengths, then the variables, if there are any, and the text.
    """
    content, variables = text.encode(), repr(dict(environment)).encode() if environment else b""
    return f"{marker} {len(variables)} {len(content)}\n".encode() + variables + content


class StatusScanner:
    """Finds the end of one step in what comes from the status pipe, whatever else comes there."""

    def __init__(self, marker: str) -> None:
        """Args: marker: Of the step; letters and digits."""
        self._end = re.compile(rb"%s (\d{1,%d})\n" % (marker.encode(), _LONGEST_STATUS))
        self._kept = len(marker) + 1 + _LONGEST_STATUS
        self._tail = b""

    def feed(self, chunk: bytes) -> int | None:
        """Returns the status once the step has ended; 0 to 255."""
        found = self._end.search(self._tail + chunk)
        if found is not None and int(found[1]) <= 0xFF:
            return int(found[1])
        self._tail = (self._tail + chunk)[-self._kept :]
        return None


class StepPipe:
    """Pipe from which a session reads its steps."""

    def __init__(self) -> None:
        """Must be made and used on the event loop's thread."""
        self._loop = asyncio.get_running_loop()
        self.read_end, self._write_end = os.pipe()
        os.set_blocking(self._write_end, False)
        self._writable = anyio.Event()

    async def write(self, content: bytes) -> None:
        """Writes a step; returns early when nobody reads any more, or it was closed."""
        left = memoryview(content)
        while left and self._write_end >= 0:
            try:
                left = left[os.write(self._write_end, left) :]
            except BlockingIOError:
                await self._until_writable()
            except BrokenPipeError:
                return

    def close_read_end(self) -> None:
        """Drops this process's own copy of the session's end."""
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end = -1

    def close(self) -> None:
        """Ends it; a session that waits for its next step ends."""
        self.close_read_end()
        if self._write_end >= 0:
            self._loop.remove_writer(self._write_end)
            os.close(self._write_end)
            self._write_end = -1
            self._writable.set()

    async def _until_writable(self) -> None:
        self._writable = anyio.Event()
        self._loop.add_writer(self._write_end, self._writable.set)
        try:
            await self._writable.wait()
        finally:
            if self._write_end >= 0:
                self._loop.remove_writer(self._write_end)


class StepEnd:
    """The end of one step; `status` stays None if the session ended first."""

    def __init__(self) -> None:
        self.reached = anyio.Event()
        self.status: int | None = None


class StatusPipe(ReadPipe):
    """Pipe on which a session reports the end of a step. It is untrusted, and read at once so that nobody blocks."""

    def __init__(self) -> None:
        """Must be made and used on the event loop's thread."""
        self._scanner: StatusScanner | None = None
        self._end = StepEnd()
        super().__init__()

    def expect(self, marker: str) -> StepEnd:
        """Returns the end of the step that is marked so."""
        self._scanner = StatusScanner(marker)
        self._end = StepEnd()
        return self._end

    def _take(self, chunk: bytes) -> None:
        status = self._scanner.feed(chunk) if self._scanner is not None else None
        if status is not None:
            self._scanner = None
            self._end.status = status
            self._end.reached.set()


@dataclass(slots=True)
class _Session:
    """A live session. Its output pipes stay, and what comes between steps is dropped."""

    language: SessionLanguage
    leaf: CommandLeaf | None
    steps: StepPipe
    status: StatusPipe
    output: OutputPipe
    errors: OutputPipe
    job: AgentJob

    @property
    def pipes(self) -> tuple[OutputPipe, OutputPipe]:
        return self.output, self.errors

    def close(self) -> None:
        for pipe in (self.steps, self.status, self.output, self.errors):
            pipe.close()


class SandboxSessions:
    """The sessions of one sandbox."""

    def __init__(self, jobs: SandboxJobs, environment: Mapping[str, str], agent_directory: str) -> None:
        """Args:
        jobs: Starts and ends what runs in the sandbox.
        environment: All of a session's environment at its start.
        agent_directory: The agent's program as commands see it.
        """
        self._jobs = jobs
        self._environment = environment
        self._python = ("python3", "-u", f"{agent_directory}/python_session.py")
        self._sessions: dict[tuple[str, SessionLanguage], _Session] = {}

    async def run(self, step: StepSpec, stop: anyio.Event, on_output: OutputListener | None) -> CommandOutcome:
        """Runs a step in its session, which begins if it is not there.

        Raises:
            CannotExecuteError: The session could not begin.
            StoppedError: `stop` was set before it started.
            SandboxLostError: The sandbox is gone.
        """
        self._jobs.check()
        if stop.is_set():
            raise StoppedError
        await self._forget_ended()
        key = (step.session, step.language)
        session = self._sessions.get(key)
        is_new = session is None
        if session is None:
            session = self._sessions[key] = await self._begin(step)
        meter = await self._jobs.counted(Meter.begin, self._jobs.group, session.leaf, self._jobs.connection.pid)
        began, since = time.monotonic(), time.clock_gettime(time.CLOCK_BOOTTIME)
        end = await self._until_ended(session, step, stop, self._ender(session, since), on_output)
        wall_s = time.monotonic() - began
        for pipe in session.pipes:
            pipe.finish()
        if end.status is not None:
            result = AgentJobResult(end.status << 8, 0.0, 0, None)
        elif session.job.result is not None:
            result = session.job.result
        else:
            raise SandboxLostError(self._jobs.connection.loss or "its first process is gone")
        if result.refused is not None:
            await self._forget_ended()
            raise cannot_begin_session(step, *result.refused)
        outcome = await self._jobs.counted(meter.outcome, result, session.pipes, wall_s)
        if stop.is_set():
            # What the interpreter started after the last look, before it returned or ended.
            await self._jobs.connection.interrupt(None, since)
        await self._forget_ended()
        use = SessionUse(started=is_new, ended=end.status is None)
        return replace(outcome, stopped=stop.is_set(), session=use)

    def close(self) -> None:
        """Lets go of all sessions; their processes end with the sandbox."""
        for session in self._sessions.values():
            session.close()
            if session.leaf is not None:
                session.leaf.close()
        self._sessions.clear()

    async def _begin(self, step: StepSpec) -> _Session:
        if len(self._sessions) >= MOST_SESSIONS:
            raise CannotExecuteError(
                "too_many_sessions", f"the sandbox has {MOST_SESSIONS} sessions already: end one of them by `exit`"
            )
        leaf = await self._jobs.take_leaf()
        try:
            return await self._begin_in(leaf, step)
        except BaseException:
            await self._release(leaf)
            raise

    async def _begin_in(self, leaf: CommandLeaf | None, step: StepSpec) -> _Session:
        with ExitStack() as unless_begun:
            steps = unless_begun.enter_context(closing(StepPipe()))
            status = unless_begun.enter_context(closing(StatusPipe()))
            output = unless_begun.enter_context(closing(OutputPipe(1)))
            errors = unless_begun.enter_context(closing(OutputPipe(1)))
            for pipe in (status, output, errors):
                pipe.watch()
            shell = step.language is SessionLanguage.SHELL
            process = Process(
                arguments=SHELL_ARGUMENTS if shell else self._python,
                environment=merged_environment(self._environment, step.session_environment),
                working_directory=step.directory,
                descriptors={
                    0: steps.read_end,
                    1: output.write_end,
                    2: errors.write_end,
                    STATUS_DESCRIPTOR: status.write_end,
                },
            )
            job = await self._jobs.start(process, leaf)
            if shell:
                await steps.write(SHELL_START)
            unless_begun.pop_all()
        steps.close_read_end()
        for pipe in (status, output, errors):
            pipe.close_write_end()
        return _Session(step.language, leaf, steps, status, output, errors, job)

    async def _until_ended(
        self,
        session: _Session,
        step: StepSpec,
        stop: anyio.Event,
        ender: Callable[[], Awaitable[None]],
        on_output: OutputListener | None,
    ) -> StepEnd:
        """Runs a step and waits for its end or its session's, which `ender` brings about once `stop` is set."""
        marker = secrets.token_hex(16)
        write = shell_step if session.language is SessionLanguage.SHELL else python_step
        for stream, pipe in zip(OutputName, session.pipes, strict=True):
            pipe.begin(step.max_output_bytes, partial(on_output, stream) if on_output is not None else None)
        end = session.status.expect(marker)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_end_with, session.job, end)
            tasks.start_soon(session.steps.write, write(step.text, marker, step.environment))
            await self._jobs.until(end.reached, stop, ender)
            tasks.cancel_scope.cancel()
        return end

    def _ender(self, session: _Session, since: float) -> Callable[[], Awaitable[None]]:
        """Returns what ends a step that began at `since`: interrupts it at first, and later kills its session."""
        asked_at: list[float] = []

        async def end() -> None:
            asked_at.append(time.monotonic())
            # What is frozen cannot return.
            if self._jobs.frozen or asked_at[-1] - asked_at[0] > _INTERRUPT_SECONDS:
                await self._jobs.kill(session.leaf)
            else:
                # An agent that gets no CPU beside the step must not keep that from being killed from outside.
                with anyio.move_on_after(_INTERRUPT_SECONDS):
                    await self._jobs.connection.interrupt(session.job, since)

        return end

    async def _forget_ended(self) -> None:
        """Lets go of sessions whose process has ended, or was killed with everything in the sandbox."""
        for key, session in list(self._sessions.items()):
            if session.job.killed:
                with anyio.move_on_after(_END_SECONDS):
                    await session.job.finished.wait()
            if session.job.finished.is_set():
                del self._sessions[key]
                session.close()
                await self._release(session.leaf)

    async def _release(self, leaf: CommandLeaf | None) -> None:
        if leaf is not None:
            with anyio.CancelScope(shield=True):
                await self._jobs.in_thread(leaf.release)


async def _end_with(job: AgentJob, end: StepEnd) -> None:
    """Ends a step whose session's process has ended."""
    await job.finished.wait()
    end.reached.set()
