"""The processes of one sandbox: each is begun by a step of the sandbox, and followed by others until it ends."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import anyio
import structlog
from callsheet.client import Command, CommandResult, EnvStep
from callsheet.integrations.e2b import process_texts
from callsheet.integrations.e2b.errors import ConnectCode, E2bError, invalid, not_found, unsupported
from callsheet.integrations.e2b.messages import Body, ProcessInput, ProcessSelector, StartProcess, end_event
from callsheet.integrations.e2b.process_texts import ProcessFiles
from callsheet.integrations.e2b.streams import ProcessOutput
from callsheet.integrations.sandboxes.remote import FacadeError, RemoteSandbox

# A slice ends by itself; on a crowded machine it may wait for long before each of its programs.
_SLICE_TIMEOUT_S = 600.0
# For so long after a request other requests are expected.
_BUSY_S = 5.0

_log = structlog.get_logger(__name__)


class RemoteProcess:
    """One process.

    Attributes:
        request: How it was begun.
        output: What it prints.
        begun: Set once it has a process id, or did not begin.
        fault: Why it did not begin, or cannot be followed.
    """

    def __init__(self, request: StartProcess, deadline: float | None) -> None:
        """Args:
        request: What to run.
        deadline: When it is to be killed, by anyio's clock; None for never.
        """
        self.request = request
        self.output = ProcessOutput()
        self.begun = anyio.Event()
        self.fault: E2bError | None = None
        self.killed_by: int | None = None
        self.files = ProcessFiles(secrets.token_hex(6), secrets.token_hex(16))
        self._deadline = deadline

    @property
    def pid(self) -> int:
        """Its id in the sandbox; 0 before it has one."""
        return self.output.pid.pid or 0

    def left_s(self, now: float) -> float | None:
        """Returns the seconds to its deadline; None if it has none."""
        return None if self._deadline is None else self._deadline - now

    def description(self) -> Body:
        """Returns the entry of the process in a list of processes."""
        config = self.request.process
        told: Body = {"pid": self.pid, "config": config.model_dump(by_alias=True, exclude_defaults=True)}
        return {**told, "tag": self.request.tag} if self.request.tag is not None else told


class RemoteProcesses:
    """The processes of one sandbox. All that is asked of it raises E2bError."""

    def __init__(
        self, sandbox: RemoteSandbox, variables: dict[str, str], most: int, closed: Callable[[], E2bError]
    ) -> None:
        """Args:
        sandbox: Where they run.
        variables: Those of all of them.
        most: Processes that may run at once.
        closed: What becomes of a process whose sandbox ends.
        """
        self._sandbox = sandbox
        self._variables = variables
        self._most = most
        self._closed = closed
        self._running: list[RemoteProcess] = []
        self._asked_at = -_BUSY_S

    def prepare(self, request: StartProcess, timeout_s: float | None) -> RemoteProcess:
        """Returns a process that `run` is to begin.

        Args:
            request: What to run.
            timeout_s: When it is to be killed, in seconds from now; None for never.
        """
        if request.pty is not None:
            raise unsupported("pty")
        if not request.process.cmd:
            raise invalid("cmd", "", "must be a program")
        if len(self._running) >= self._most:
            raise E2bError(ConnectCode.RESOURCE_EXHAUSTED, f"{self._most} processes run, and no more may")
        self.note_request()
        deadline = None if timeout_s is None else anyio.current_time() + timeout_s
        process = RemoteProcess(request, deadline)
        self._running.append(process)
        return process

    async def run(self, process: RemoteProcess) -> None:
        """Begins a process and follows it to its end, which its readers are told."""
        fault: E2bError | None = None
        try:
            await self._follow(process)
        except E2bError as error:
            fault = error
        except FacadeError as error:
            fault = E2bError(ConnectCode.INTERNAL, str(error))
        except anyio.get_cancelled_exc_class():
            fault = self._closed()
            raise
        except Exception as error:
            _log.exception("process_not_followed")
            fault = E2bError(ConnectCode.INTERNAL, f"the facade failed: {type(error).__name__}")
        finally:
            self._running.remove(process)
            process.fault = fault
            process.begun.set()
            process.output.end(fault)

    def note_request(self) -> None:
        """Somebody else asks something of the sandbox: what runs is to make way for more."""
        if self._running:
            self._asked_at = anyio.current_time()

    def find(self, selector: ProcessSelector) -> RemoteProcess:
        """Returns the process that is meant."""
        for process in self._running:
            if process.pid and process.pid == selector.pid:
                return process
            if selector.tag is not None and process.request.tag == selector.tag:
                return process
        raise not_found(f"process {selector.pid if selector.pid is not None else selector.tag!r}")

    def descriptions(self) -> list[Body]:
        """Returns what runs."""
        return [process.description() for process in self._running if process.pid]

    async def signal(self, process: RemoteProcess, number: int) -> None:
        """Signals a process and all that it began."""
        self.note_request()
        process.killed_by = number
        result = await self._sandbox.run(process_texts.signal_command(process.pid, number), "e2b_signal")
        if result.exit_code != 0:
            raise not_found(f"process {process.pid}")

    async def write(self, process: RemoteProcess, given: ProcessInput) -> None:
        """Writes to a process's standard input."""
        if given.pty is not None:
            raise unsupported("pty")
        self._check_input(process)
        self.note_request()
        command = process_texts.write_input_command(process.files, given.stdin or b"")
        process_texts.check_input(process.pid, await self._sandbox.run(command, "e2b_input"))

    async def close_input(self, process: RemoteProcess) -> None:
        """Ends a process's standard input."""
        self._check_input(process)
        self.note_request()
        command = process_texts.close_input_command(process.files)
        process_texts.check_input(process.pid, await self._sandbox.run(command, "e2b_input"))

    def _check_input(self, process: RemoteProcess) -> None:
        if not process.request.stdin:
            raise invalid("process", process.pid, "must have been begun with stdin")

    async def _follow(self, process: RemoteProcess) -> None:
        await self._sandbox.ready()
        step, label = self._first_step(process), "e2b_command"
        reason = ""
        while True:
            result, met = await self._slice(process, step, label)
            reason = met or reason
            exit_code = process_texts.exit_code_of(process.files, result)
            if exit_code is not None:
                process.output.tell(_end_of(process, exit_code, reason))
                return
            left_s = process.left_s(anyio.current_time())
            if left_s is not None and left_s <= 0:
                await self._sandbox.run(process_texts.give_up_command(process.files, process.pid), "e2b_signal")
                message = "the command ran longer than its timeout, and was killed"
                raise E2bError(ConnectCode.DEADLINE_EXCEEDED, message)
            step, label = self._next_step(process), "e2b_follow"

    async def _slice(self, process: RemoteProcess, step: Command, label: str) -> tuple[CommandResult, str]:
        """Follows a process for one step; returns the step's result, and what it met with."""
        output = process.output
        output.begin_slice()
        handle = await self._sandbox.submit(EnvStep(step, stream_output=True), label, _SLICE_TIMEOUT_S)
        async for chunk in handle.output():
            output.live(chunk)
            if output.pid.pid is not None:
                process.begun.set()
        result, reason = self._sandbox.result(await self._sandbox.outcome(handle))
        if result.signal != process_texts.REFUSED:
            output.rest(result)
        if output.pid.pid is not None:
            process.begun.set()
        return result, reason

    def _first_step(self, process: RemoteProcess) -> Command:
        config = process.request.process
        return process_texts.begin_command(
            process.files,
            [config.cmd, *config.args],
            {**self._variables, **config.envs},
            cwd=config.cwd,
            stdin=process.request.stdin,
            slice_s=self._slice_s(process, begins=True),
        )

    def _next_step(self, process: RemoteProcess) -> Command:
        return process_texts.follow_command(
            process.files,
            slice_s=self._slice_s(process, begins=False),
            stdout_bytes=process.output.stdout_bytes,
            stderr_bytes=process.output.stderr_bytes,
        )

    def _slice_s(self, process: RemoteProcess, *, begins: bool) -> float:
        now = anyio.current_time()
        others = len(self._running) > 1 or now - self._asked_at < _BUSY_S
        return process_texts.slice_of(begins=begins, others=others, left_s=process.left_s(now))


def _end_of(process: RemoteProcess, exit_code: int, reason: str) -> Body:
    """How a process ended. A shell that saw it killed by a signal told that as 128 and the signal."""
    if process.killed_by is not None and exit_code == 128 + process.killed_by:
        return end_event(-1, f"signal {process.killed_by}")
    return end_event(exit_code, reason or (f"exit status {exit_code}" if exit_code else ""))
