"""One runtime as SWE-ReX's clients see it: a sandbox with sessions, programs and files."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable

import anyio
from callsheet.integrations.sandboxes.remote import RemoteSandbox
from callsheet.integrations.swerex import programs
from callsheet.integrations.swerex.errors import TransferredError, swerex_error
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
from callsheet.integrations.swerex.shells import Shells

_MOST_OPEN_REQUESTS = 64
_REMEMBERED_ANSWERS = 4


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
