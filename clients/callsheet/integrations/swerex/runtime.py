"""Runtimes as SWE-ReX's clients see them, by name: sandboxes with sessions, programs and files."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import replace

import anyio
import anyio.abc
from callsheet.client import Job
from callsheet.integrations.sandboxes.remote import RemoteSandbox
from callsheet.integrations.swerex import programs
from callsheet.integrations.swerex.errors import SwerexWords, TransferredError, swerex_error, value_error
from callsheet.integrations.swerex.protocol import (
    CloseSession,
    CreateSession,
    Execute,
    InterruptSession,
    ReadFile,
    Response,
    SessionAction,
    WriteFile,
)
from callsheet.integrations.swerex.settings import NAME, FacadeSettings
from callsheet.integrations.swerex.shells import Shells

_MOST_OPEN_REQUESTS = 64
_REMEMBERED_ANSWERS = 4
DEFAULT_NAME = "default"
"""The runtime of addresses without a name."""


class _Answer:
    """The answer to one request, for whoever asks for it."""

    def __init__(self) -> None:
        self.given = anyio.Event()
        self.response: Response | None = None
        self.fault: TransferredError | None = None

    async def get(self) -> Response:
        await self.given.wait()
        if self.response is not None:
            return self.response
        fault = self.fault or swerex_error("SwerexException", "the request was given up", kind="infra")
        raise fault.with_traceback(None)


class Runtime:
    """The verbs of the protocol. All raise TransferredError where the client is to raise an exception."""

    def __init__(self, sandbox: RemoteSandbox) -> None:
        """Args: sandbox: It may still be on its way; verbs wait for it."""
        self.sandbox = sandbox
        self._shells = Shells(sandbox)
        self._open_requests = 0
        self._answers: OrderedDict[str, _Answer] = OrderedDict()

    async def answer(self, request_id: str | None, respond: Callable[[], Awaitable[Response]]) -> Response:
        """Responds to a request once: one that comes again, as a client lost its connection, gets the same answer.

        Args:
            request_id: The client's id of it; None if it gave none.
            respond: Does what is asked.
        """
        known = self._answers.get(request_id) if request_id is not None else None
        if known is not None:
            return await known.get()
        if self._open_requests >= _MOST_OPEN_REQUESTS:
            raise swerex_error("SwerexException", f"{_MOST_OPEN_REQUESTS} requests are open", kind="infra")
        answer = _Answer()
        if request_id is not None:
            self._answers[request_id] = answer
        self._open_requests += 1
        try:
            await self.sandbox.ready()
            answer.response = await respond()
        except TransferredError as fault:
            answer.fault = fault
        finally:
            self._open_requests -= 1
            answer.given.set()
            self._forget_old_answers()
        return await answer.get()

    async def create_session(self, request: CreateSession) -> Response:
        """Begins a shell session."""
        return await self._shells.create(request)

    async def run_in_session(self, request: SessionAction) -> Response:
        """Runs text in a session, or interrupts what runs there."""
        if isinstance(request, InterruptSession):
            return await self._shells.interrupt(request)
        return await self._shells.run(request)

    async def close_session(self, request: CloseSession) -> Response:
        """Ends a session."""
        return await self._shells.close(request)

    async def execute(self, request: Execute) -> Response:
        """Runs a program."""
        marker = secrets.token_hex(16)
        command = programs.execute_command(request, marker)
        try:
            result = await self.sandbox.run(command, "execute", request.timeout)
        except TransferredError as fault:
            if fault.timed_out:
                message = f"Timeout ({request.timeout}s) exceeded while running command"
                raise swerex_error("CommandTimeoutError", message, **fault.extra_info) from fault
            raise
        return programs.execute_response(request, result, marker)

    async def read_file(self, request: ReadFile) -> Response:
        """Returns a file as text."""
        result = await self.sandbox.run(programs.read_command(request.path), "read_file")
        return programs.read_response(request, result)

    async def write_file(self, request: WriteFile) -> Response:
        """Writes text to a file."""
        return await self.write(request.path, request.content.encode())

    async def write(self, path: str, content: bytes) -> Response:
        """Writes a file."""
        result = await self.sandbox.run(programs.write_command(path, content), "write_file")
        programs.check_file(path, result)
        return {}

    async def unpack(self, path: str, archive: bytes) -> Response:
        """Unpacks a tar archive into a directory."""
        result = await self.sandbox.run(programs.unpack_command(path, archive), "upload")
        programs.check_file(path, result)
        return {}

    def _forget_old_answers(self) -> None:
        given = [request_id for request_id, answer in self._answers.items() if answer.given.is_set()]
        for request_id in given[:-_REMEMBERED_ANSWERS]:
            del self._answers[request_id]


class Runtimes:
    """Begins a runtime with the first request that names it, and ends it when it is closed."""

    def __init__(self, job: Job, settings: FacadeSettings, tasks: anyio.abc.TaskGroup, mark: str) -> None:
        """Args:
        job: Open; every runtime is a trajectory of it.
        settings: Of the facade.
        tasks: Where sandboxes are made.
        mark: In the ids of all trajectories.
        """
        self._job = job
        self._settings = settings
        self._tasks = tasks
        self._mark = mark
        self._runtimes: dict[str, Runtime] = {}

    def get(self, name: str, image: str) -> Runtime:
        """Returns a runtime, which begins if it is not there.

        Args:
            name: 1 to 64 letters, digits, ".", "_" and "-".
            image: Root file system as the address names it; empty for the facade's own.

        Raises:
            TransferredError: The name is none, another image was asked for before, or there are too many runtimes.
        """
        found = self._runtimes.get(name)
        if found is None:
            found = self._runtimes[name] = self._begin(name, image)
        if image and found.sandbox.image != image:
            raise value_error("image", image, f"runtime {name!r} has {found.sandbox.image!r}: close it first")
        return found

    async def close(self, name: str) -> None:
        """Ends a runtime; nothing to do if there is none. Its name may be used again for a fresh one.

        Raises:
            TransferredError: The scheduler could not be told.
        """
        runtime = self._runtimes.pop(name, None)
        if runtime is not None:
            await runtime.sandbox.end()

    def _begin(self, name: str, image: str) -> Runtime:
        if not NAME.fullmatch(name):
            raise value_error("runtime", name, "must be 1 to 64 letters, digits, '.', '_' or '-'")
        most = self._settings.max_sandboxes
        if len(self._runtimes) >= most:
            raise swerex_error("SwerexException", f"{most} runtimes are open, and no more may be", kind="infra")
        request = self._settings.sandbox
        # A trajectory's id is used once; a name again and again.
        trajectory = self._job.trajectory(
            f"{name}.{self._mark}{secrets.token_hex(4)}", idle_timeout_s=self._settings.idle_timeout_s
        )
        sandbox = RemoteSandbox(trajectory, replace(request, image=image or request.image), SwerexWords())
        self._tasks.start_soon(sandbox.begin)
        return Runtime(sandbox)
