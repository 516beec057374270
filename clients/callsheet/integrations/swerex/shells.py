"""The shell sessions of one runtime."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from callsheet.client import (
    ActionHandle,
    CallsheetError,
    Cancelled,
    Command,
    CommandResult,
    EnvStep,
    Failed,
    FailureKind,
)
from callsheet.integrations.sandboxes.remote import RemoteSandbox
from callsheet.integrations.swerex.errors import TransferredError, refusal_error, swerex_error, value_error
from callsheet.integrations.swerex.programs import MAX_OUTPUT_BYTES, non_zero_error
from callsheet.integrations.swerex.protocol import (
    CloseSession,
    CreateSession,
    InterruptSession,
    Response,
    RunInSession,
    observation,
)
from callsheet.integrations.swerex.shell import (
    check_step,
    ended_error,
    start_text,
    status_of,
    step_text,
    text_of,
    truncation,
)

# For the shell to come up, beside what it sources.
_SHELL_START_S = 5.0
_CLOSE_S = 5.0
_INTERRUPTED = "interrupted"


@dataclass(slots=True)
class _Shell:
    """The shell of a session as its client knows it.

    Attributes:
        place: Its session's name in the sandbox; no two have the same, so nothing is left of an earlier one.
        running: Steps that have no outcome yet.
        unread: What a step printed that timed out; an interrupt returns it, as in SWE-ReX.
        has_ended: It is gone.
    """

    place: str
    running: list[ActionHandle[CommandResult]] = field(default_factory=list)
    unread: bytes = b""
    has_ended: bool = False


class Shells:
    """Sessions by the names that clients give them."""

    def __init__(self, sandbox: RemoteSandbox) -> None:
        self._sandbox = sandbox
        self._shells: dict[str, _Shell] = {}
        self._begun = 0

    async def create(self, request: CreateSession) -> Response:
        """Begins a session."""
        if request.session in self._shells:
            raise swerex_error("SessionExistsError", f"session {request.session} already exists")
        self._begun += 1
        shell = self._shells[request.session] = _Shell(f"s{self._begun}")
        try:
            result, _ = await self._run(
                shell, start_text(shell.place, request.startup_source), request.startup_timeout + _SHELL_START_S
            )
            if shell.has_ended:
                raise ended_error(request.session)
        except BaseException:
            del self._shells[request.session]
            await self._end(shell)
            raise
        return {"output": text_of(result.stdout), "session_type": "bash"}

    async def run(self, request: RunInSession) -> Response:
        """Runs a step.

        Raises:
            TransferredError: There is no such session, it cannot be run here, has no result, or failed and must not.
        """
        shell = self._find(request.session)
        _refuse_terminals(request)
        if shell.has_ended:
            raise ended_error(request.session)
        marker = secrets.token_hex(8)
        text = step_text(shell.place, request.command, marker)
        try:
            result, reason = await self._run(shell, text, request.timeout)
        except TransferredError as fault:
            if fault.timed_out:
                message = f"timeout after {request.timeout} seconds while running command {request.command!r}"
                raise swerex_error("CommandTimeoutError", message, **fault.extra_info) from fault
            raise
        if result.session is not None and result.session.started:
            shell.has_ended = True
        check_step(request.session, request.command, result, marker)
        return _observed(request, result, reason)

    async def interrupt(self, request: InterruptSession) -> Response:
        """Cancels what runs in a session. What a step that timed out had printed is returned."""
        shell = self._find(request.session)
        output, shell.unread = shell.unread, b""
        for handle in list(shell.running):
            try:
                await handle.cancel(_INTERRUPTED)
                await self._sandbox.outcome(handle)
            except CallsheetError as error:
                raise refusal_error(error) from error
        return observation(text_of(output).strip(), 0)

    async def close(self, request: CloseSession) -> Response:
        """Ends a session."""
        shell = self._find(request.session)
        del self._shells[request.session]
        await self._end(shell)
        return {"session_type": "bash"}

    def _find(self, name: str) -> _Shell:
        if name not in self._shells:
            raise swerex_error("SessionDoesNotExistError", f"session {name!r} does not exist")
        return self._shells[name]

    async def _run(self, shell: _Shell, text: str, timeout_s: float | None) -> tuple[CommandResult, str]:
        """Returns a step's result and what it met with; raises TransferredError where there is none."""
        shell.unread = b""
        step = EnvStep(Command.shell(text, max_output_bytes=MAX_OUTPUT_BYTES), session=shell.place)
        handle = await self._sandbox.submit(step, "bash", timeout_s)
        shell.running.append(handle)
        try:
            outcome = await self._sandbox.outcome(handle)
        finally:
            shell.running.remove(handle)
        partial = outcome.partial if isinstance(outcome, Failed | Cancelled) else None
        if partial is not None and partial.session is not None and partial.session.ended:
            shell.has_ended = True
        if isinstance(outcome, Failed) and outcome.kind is FailureKind.TIMEOUT and partial is not None:
            shell.unread = partial.stdout
        if isinstance(outcome, Cancelled) and outcome.reason == _INTERRUPTED:
            if partial is None:
                raise swerex_error("CommandTimeoutError", "interrupted before it started", kind="cancelled")
            return partial, _INTERRUPTED
        result, reason = self._sandbox.result(outcome)
        if result.session is not None and result.session.ended:
            shell.has_ended = True
            reason = reason or "the shell of the session has ended"
        return result, reason

    async def _end(self, shell: _Shell) -> None:
        """Ends the shell of a session; its place counts, as a sandbox has few."""
        if shell.has_ended or self._sandbox.fault is not None:
            return
        step = EnvStep(Command.shell("exit"), session=shell.place)
        handle = await self._sandbox.submit(step, "bash", _CLOSE_S)
        await self._sandbox.outcome(handle)


def _refuse_terminals(request: RunInSession) -> None:
    """Raises TransferredError for what needs a terminal: a session's input is empty, and its outputs are pipes."""
    for name in ("is_interactive_command", "is_interactive_quit", "expect"):
        if getattr(request, name):
            raise value_error(name, getattr(request, name), "not supported: sessions have no terminal")


def _observed(request: RunInSession, result: CommandResult, reason: str) -> Response:
    output, status = text_of(result.stdout), status_of(result)
    if request.check == "raise" and status != 0:
        message = f"Command {request.command!r} failed with exit code {status}. Here is the output:\n{output!r}"
        raise non_zero_error(request.error_msg, message, status)
    reasons = "; ".join(filter(None, (reason, truncation(result))))
    return observation(output, status if request.check != "ignore" else None, reasons)
