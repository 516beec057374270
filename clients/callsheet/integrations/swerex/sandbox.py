"""The sandbox behind a runtime: a trajectory whose env_reset makes it, and whose env_steps run in it."""

from __future__ import annotations

import anyio
import structlog
from callsheet.client import (
    ActionHandle,
    AlreadyExistsError,
    CallsheetError,
    Command,
    CommandResult,
    Demand,
    EnvStep,
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
from callsheet.integrations.swerex.errors import (
    TransferredError,
    outcome_error,
    payload_error,
    refusal_error,
    swerex_error,
)
from callsheet.integrations.swerex.settings import SandboxRequest

_SHORTEST_TIMEOUT_S = 0.001

_log = structlog.get_logger(__name__)


class RemoteSandbox:
    """One sandbox, from its trajectory's begin to its end. A sandbox that is lost is not replaced: its state was it."""

    def __init__(self, trajectory: Trajectory, request: SandboxRequest) -> None:
        """Args:
        trajectory: Not open yet.
        request: What the sandbox is to be.
        """
        self._trajectory = trajectory
        self._request = request
        self._ready = anyio.Event()
        self._fault: TransferredError | None = None

    @property
    def image(self) -> str:
        """Its root file system."""
        return self._request.image

    @property
    def fault(self) -> TransferredError | None:
        """Why there is no sandbox, or none any more; None while it may still come."""
        return self._fault

    async def begin(self) -> None:
        """Opens the trajectory and makes the sandbox; how that goes is told by `ready`."""
        try:
            await self._trajectory.open()
            await self._reset()
        except CallsheetError as error:
            self._fault = refusal_error(error)
        except TransferredError as fault:
            self._fault = fault
        except anyio.get_cancelled_exc_class():
            self._fault = swerex_error("SwerexException", "the runtime was closed while it started")
            raise
        finally:
            self._ready.set()
            self._tell("runtime_ready" if self._fault is None else "runtime_not_started")

    async def ready(self) -> None:
        """Waits until the sandbox is there.

        Raises:
            TransferredError: It did not come, or is gone.
        """
        await self._ready.wait()
        if self._fault is not None:
            raise self._fault.with_traceback(None)

    async def submit(self, step: EnvStep, label: str, timeout_s: float | None) -> ActionHandle[CommandResult]:
        """Submits a step.

        Args:
            step: What to do.
            label: Class of work, for predictions.
            timeout_s: What it may take once it runs; None for the scheduler's default.

        Raises:
            TransferredError: It was refused.
        """
        # A timeout of 0 would be none to the scheduler.
        timeouts = Timeouts(start_to_close_s=max(timeout_s, _SHORTEST_TIMEOUT_S)) if timeout_s is not None else None
        demand = Demand(cpu=self._request.cpus)
        try:
            return await self._trajectory.submit(step, label=label, timeouts=timeouts, demand=demand)
        except CallsheetError as error:
            raise self._noted(refusal_error(error)) from error

    async def outcome(self, handle: ActionHandle[CommandResult]) -> Outcome[CommandResult]:
        """Returns the outcome of a step; raises TransferredError if it cannot be told."""
        try:
            return await handle.outcome()
        except PayloadError as error:
            raise payload_error(error) from error
        except CallsheetError as error:
            raise self._noted(refusal_error(error)) from error

    def result(self, outcome: Outcome[CommandResult]) -> tuple[CommandResult, str]:
        """Returns the result of a command, and what it met with; raises TransferredError where there is no result."""
        if isinstance(outcome, Succeeded):
            return outcome.value, ""
        if isinstance(outcome, Failed) and outcome.kind is FailureKind.RESOURCE_LIMIT and outcome.partial is not None:
            return outcome.partial, f"{outcome.kind.name} {outcome.reason}: {outcome.message}"
        raise self._noted(outcome_error(outcome))

    async def run(self, command: Command, label: str, timeout_s: float | None = None) -> CommandResult:
        """Runs a command to its end; raises TransferredError if it has no result."""
        handle = await self.submit(EnvStep(command), label, timeout_s)
        return self.result(await self.outcome(handle))[0]

    async def end(self) -> None:
        """Closes the trajectory: what runs is cancelled, and the sandbox goes.

        Raises:
            TransferredError: The scheduler could not be told; its idle timeout ends the trajectory then.
        """
        try:
            await self._trajectory.close()
        except (NotFoundError, AlreadyExistsError, FailedPreconditionError) as refusal:
            self._tell("runtime_was_closed", reason=str(refusal))
        except CallsheetError as error:
            raise refusal_error(error) from error
        else:
            self._tell("runtime_closed")

    async def _reset(self) -> None:
        request = self._request
        memory = [Resource("memory", request.memory_mib, hold=Hold.TRAJECTORY)] if request.memory_mib else None
        outcome = await self._trajectory.env_reset(
            image=request.image,
            set_up=Command.shell(request.set_up) if request.set_up else None,
            disk_mib=request.disk_mib,
            demand=Demand(*memory, cpu=1) if memory else None,
            label="env_reset",
        )
        if not isinstance(outcome, Succeeded):
            raise outcome_error(outcome)

    def _noted(self, fault: TransferredError) -> TransferredError:
        if fault.ends_runtime and self._fault is None:
            self._fault = fault
            self._tell("runtime_lost")
        return fault

    def _tell(self, event: str, **about: str) -> None:
        why = {"reason": str(self._fault)} if self._fault is not None else {}
        _log.info(event, trajectory_id=self._trajectory.trajectory_id, **why, **about)
