"""One sandbox of a facade: a trajectory whose env_reset makes it, and whose env_steps run in it.

Where a sandbox or a command has no result, the facade's client is told so in the words of its own protocol.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import anyio
import structlog
from callsheet.client import (
    ActionHandle,
    AlreadyExistsError,
    CallsheetError,
    Cancelled,
    Command,
    CommandDefaults,
    CommandResult,
    Demand,
    EnvResetResult,
    EnvStep,
    Expired,
    Failed,
    FailedPreconditionError,
    FailureKind,
    Hold,
    NotFoundError,
    Outcome,
    PayloadError,
    Resource,
    Succeeded,
    Timeouts,
    Trajectory,
)
from callsheet.http_server.trace_context import CALLER_SPAN
from callsheet.integrations.sandboxes.settings import SandboxRequest

_SHORTEST_TIMEOUT_S = 0.001
_log = structlog.get_logger(__name__)
NoResult = (
    Failed[CommandResult] | Failed[EnvResetResult] | Cancelled[CommandResult] | Cancelled[EnvResetResult] | Expired
)
"""An outcome without a result."""


class RemoteSandbox:
    """One sandbox, from its trajectory's begin to its end. A sandbox that is lost is not replaced: its state was it."""

    def __init__(
        self,
        trajectory: Trajectory,
        request: SandboxRequest,
        words: FaultWords,
        defaults: CommandDefaults | None = None,
    ) -> None:
        """Args:
        trajectory: Not open yet.
        request: What the sandbox is to be.
        words: How its faults are told.
        defaults: What its commands take where they say nothing themselves.
        """
        self._trajectory = trajectory
        self._request = request
        self._words = words
        self._defaults = defaults
        self._ready = anyio.Event()
        self._awake = anyio.Event()
        self._awake.set()
        self._fault: FacadeError | None = None

    @property
    def image(self) -> str:
        """Its root file system."""
        return self._request.image

    @property
    def fault(self) -> FacadeError | None:
        """Returns why there is no sandbox, or none any more; None while it may still come."""
        return self._fault

    async def begin(self) -> None:
        """Opens the trajectory and makes the sandbox; how that goes is told by `ready`."""
        try:
            await self._trajectory.open()
            await self._reset()
        except CallsheetError as error:
            self._fault = self._words.refused(error)
        except FacadeError as fault:
            self._fault = fault
        except anyio.get_cancelled_exc_class():
            self._fault = self._words.closed()
            raise
        finally:
            self._ready.set()
            self._tell("sandbox_ready" if self._fault is None else "sandbox_not_started")

    async def ready(self) -> None:
        """Waits until the sandbox is there.

        Raises:
            FacadeError: It did not come, or is gone.
        """
        await self._ready.wait()
        if self._fault is not None:
            raise self._fault.with_traceback(None)

    def pause(self) -> None:
        """Holds back all steps from now on. Between steps everything in the sandbox stands still."""
        self._awake = anyio.Event()

    def resume(self) -> None:
        """Lets steps through that were held back."""
        self._awake.set()

    async def submit(self, step: EnvStep, label: str, timeout_s: float | None) -> ActionHandle[CommandResult]:
        """Submits a step, once the sandbox is not paused.

        Args:
            step: What to do.
            label: Class of work, for predictions.
            timeout_s: What it may take once it runs; None for the scheduler's default.

        Raises:
            FacadeError: It was refused.
        """
        # A timeout of 0 would be none to the scheduler.
        timeouts = Timeouts(start_to_close_s=max(timeout_s, _SHORTEST_TIMEOUT_S)) if timeout_s is not None else None
        demand = Demand(cpu=self._request.cpus)
        await self._awake.wait()
        try:
            return await self._trajectory.submit(
                step, label=label, timeouts=timeouts, demand=demand, traceparent=CALLER_SPAN.get()
            )
        except CallsheetError as error:
            raise self._noted(self._words.refused(error)) from error

    async def outcome(self, handle: ActionHandle[CommandResult]) -> Outcome[CommandResult]:
        """Returns the outcome of a step; raises FacadeError if it cannot be told."""
        try:
            return await handle.outcome()
        except PayloadError as error:
            raise self._words.payload_lost(error) from error
        except CallsheetError as error:
            raise self._noted(self._words.refused(error)) from error

    def result(self, outcome: Outcome[CommandResult]) -> tuple[CommandResult, str]:
        """Returns the result of a command, and what it met with; raises FacadeError where there is no result."""
        if isinstance(outcome, Succeeded):
            return outcome.value, ""
        if isinstance(outcome, Failed) and outcome.kind is FailureKind.RESOURCE_LIMIT and outcome.partial is not None:
            return outcome.partial, f"{outcome.kind.name} {outcome.reason}: {outcome.message}"
        raise self._noted(self._words.no_result(outcome))

    async def run(self, command: Command, label: str, timeout_s: float | None = None) -> CommandResult:
        """Runs a command to its end; raises FacadeError if it has no result."""
        handle = await self.submit(EnvStep(command), label, timeout_s)
        return self.result(await self.outcome(handle))[0]

    async def end(self) -> None:
        """Closes the trajectory: what runs is cancelled, and the sandbox goes.

        Raises:
            FacadeError: The scheduler could not be told; its idle timeout ends the trajectory then.
        """
        try:
            await self._trajectory.close()
        except (NotFoundError, AlreadyExistsError, FailedPreconditionError) as refusal:
            self._tell("sandbox_was_closed", reason=str(refusal))
        except CallsheetError as error:
            raise self._words.refused(error) from error
        else:
            self._tell("sandbox_closed")

    async def _reset(self) -> None:
        request = self._request
        memory = [Resource("memory", request.memory_mib, hold=Hold.TRAJECTORY)] if request.memory_mib else None
        outcome = await self._trajectory.env_reset(
            image=request.image,
            set_up=Command.shell(request.set_up) if request.set_up else None,
            disk_mib=request.disk_mib,
            memory="guaranteed" if request.guaranteed_memory else None,
            demand=Demand(*memory, cpu=1) if memory else None,
            label="env_reset",
            defaults=self._defaults,
            traceparent=CALLER_SPAN.get(),
        )
        if not isinstance(outcome, Succeeded):
            raise self._words.no_result(outcome)

    def _noted(self, fault: FacadeError) -> FacadeError:
        if fault.ends_sandbox and self._fault is None:
            self._fault = fault
            self._tell("sandbox_lost")
        return fault

    def _tell(self, event: str, **about: str) -> None:
        why = {"reason": str(self._fault)} if self._fault is not None else {}
        _log.info(event, trajectory_id=self._trajectory.trajectory_id, **why, **about)


class FacadeError(Exception):
    """An error to tell a client in its protocol's words.

    Attributes:
        ends_sandbox: There is no sandbox any more.
    """

    ends_sandbox: bool = False


class FaultWords(ABC):
    """How a protocol tells what went wrong."""

    @abstractmethod
    def refused(self, error: CallsheetError) -> FacadeError:
        """Returns the error for a client if the scheduler refused an action or could not be reached."""

    @abstractmethod
    def payload_lost(self, error: PayloadError) -> FacadeError:
        """Returns the error for a client if an outcome is there, but its bytes are not."""

    @abstractmethod
    def no_result(self, outcome: NoResult) -> FacadeError:
        """Returns the error for a client if an action has no result."""

    @abstractmethod
    def closed(self) -> FacadeError:
        """Returns the error for a client if the sandbox was given up while it began."""
