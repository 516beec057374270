"""The seam between the manager runtime and what really runs an attempt.

The runtime owns the session with the scheduler, fencing, deadlines and outcomes; an `Executor` owns sandboxes, engines
or models. One attempt is one call of `Executor.run`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from callsheet.managers.clock import Waits
from callsheet.timing.waits import Cause
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2, outcome_pb2


@dataclass(frozen=True, slots=True)
class Completed:
    """The attempt ran to its end."""

    succeeded: outcome_pb2.Succeeded
    usage: outcome_pb2.Usage = field(default_factory=outcome_pb2.Usage)


@dataclass(frozen=True, slots=True)
class Broken:
    """The attempt failed; `failed` says why and may carry a partial result."""

    failed: outcome_pb2.Failed
    usage: outcome_pb2.Usage = field(default_factory=outcome_pb2.Usage)

    @classmethod
    def of(cls, kind: outcome_pb2.FailureKind.ValueType, reason: str, message: str) -> Broken:
        """Returns a failure without a partial result."""
        return cls(outcome_pb2.Failed(kind=kind, reason=reason, message=message))


@dataclass(frozen=True, slots=True)
class Stopped:
    """The attempt ended because `Attempt.stop_requested` was set; the runtime makes it a timeout or a cancel.

    Attributes:
        partial: What there is of its result.
        usage: What it used.
        hint: What may be the cause of a timeout; empty for nothing.
    """

    partial: outcome_pb2.Succeeded | None = None
    usage: outcome_pb2.Usage = field(default_factory=outcome_pb2.Usage)
    hint: str = ""


AttemptResult = Completed | Broken | Stopped


class PayloadError(Exception):
    """A payload could not be read or written.

    An executor may let it escape from `run`: the runtime then fails the attempt with `reason` and `kind`.
    """

    reason = "payload_error"
    kind: outcome_pb2.FailureKind.ValueType = outcome_pb2.FAILURE_KIND_INFRA


class PayloadMissingError(PayloadError):
    """The payload store does not have the bytes, or has other bytes than the reference says."""

    reason = "payload_missing"


class PayloadUnavailableError(PayloadError):
    """The payload store could not be reached in time."""

    reason = "payload_unavailable"


class PayloadTooLargeError(PayloadError):
    """The bytes are more than the payload store, or this manager, takes."""

    reason = "payload_too_large"
    kind = outcome_pb2.FAILURE_KIND_RESOURCE_LIMIT


class PayloadAccess(Protocol):
    """Reads and writes the payloads of actions."""

    async def read(self, blob: common_pb2.Blob) -> bytes:
        """Returns the bytes of a blob, inline or by reference.

        Raises:
            PayloadMissingError: The payload store does not have them.
            PayloadUnavailableError: The payload store cannot be reached.
            PayloadTooLargeError: They are more than this manager takes.
        """

    async def write(self, content: bytes) -> common_pb2.Blob:
        """Returns a blob for the bytes: inline up to 64 KiB, otherwise stored first.

        Raises:
            PayloadUnavailableError: The payload store cannot be reached.
            PayloadTooLargeError: They are more than the payload store takes.
        """


def _drop_output(chunk: common_pb2.OutputChunk) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class Attempt:
    """One attempt as its executor sees it.

    Attributes:
        grant: What it may use. Replaced as a whole when the scheduler resizes it.
        action: What to do.
        payloads: Access to payloads by reference.
        stop_requested: Set when the attempt is to end now; `run` returns `Stopped` with what there is within 5 s,
            after which its task is cancelled.
        execution_clock: Set by an executor that grants an attempt less than all the time that passes: returns the
            seconds to charge it by the monotonic time `now`. It never runs faster than time and answers after the end.
            None: all time counts.
        stands_for: What it waits for while that clock stands.
        waits: What it waits for while that clock runs, which limits such waits as well.
        sandbox_held_mib: What its trajectory's sandbox holds once it has ended, see AttemptEnded; 0 if it is not known.
        rest_mib: What that held before it began, likewise.
        thawed_mib: What that has beyond it while the attempt executes.
        cpu_s: CPU seconds of all that ran in sandboxes meanwhile; 0 where nothing counts them.
        report_output: Sends a part of what it prints to those who watch it, or drops it if there is no room. Called on
            the event loop, for actions that ask for it.
    """

    grant: manager_service_pb2.Grant
    action: action_pb2.ActionSpec
    payloads: PayloadAccess
    stop_requested: anyio.Event = field(default_factory=anyio.Event)
    execution_clock: Callable[[float], float] | None = None
    stands_for: Cause = Cause.CORES
    waits: Waits = field(default_factory=Waits)
    sandbox_held_mib: int = 0
    rest_mib: int = 0
    thawed_mib: int = 0
    cpu_s: float = 0.0
    report_output: Callable[[common_pb2.OutputChunk], None] = _drop_output


class Executor(ABC):
    """Work of a manager for one kind of resource. Only `services` and `run` must be given; the rest does nothing.

    A subclass marks what it redefines with `override`, so that a type checker finds a misspelt method.
    """

    @abstractmethod
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """The services to register."""

    def node(self, machine: manager_service_pb2.NodeSpec) -> manager_service_pb2.NodeSpec:
        """Returns the node to register: the machine, or a stand-in for outside capacity that several managers share."""
        return machine

    def capabilities(self) -> Mapping[str, str]:
        """Returns what it can and cannot enforce, for `Registration.capabilities`."""
        return {}

    def sandboxes(self) -> Sequence[manager_service_pb2.SandboxState]:
        """The sandboxes it holds now; empty for executors without state."""
        return []

    def run_inline(self, dispatch: manager_service_pb2.Dispatch) -> Completed | Broken | None:
        """Runs an attempt on the spot and returns its result, or None to have it run by `run`.

        Called on the event loop, so it must not block, and when it returns None it must not have done anything. No
        AttemptStarted is sent for an attempt that ends here: its end says that it started.
        """
        del dispatch
        return None

    @abstractmethod
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Runs one attempt to its end. The grant holds from the call to the return.

        An exception that escapes becomes INFRA with reason "executor_error"; anything foreseeable is returned.
        """

    async def resize(self, attempt: Attempt) -> None:
        """Applies `attempt.grant` after a change of its units and cores.

        It runs beside `run`, one call at a time for each attempt, and may be overtaken by the end of `run`: an attempt
        that is not there is no error.
        """

    async def release_sandbox(self, sandbox: manager_service_pb2.SandboxState) -> None:
        """Destroys a sandbox; one that is not there, or whose `sandbox_id` differs, is no error."""

    def on_sandbox_lost(self, report: Callable[[manager_service_pb2.SandboxState, str], None]) -> None:
        """Takes the function to call, on the event loop, with a lost sandbox and why it is gone, as a sentence.

        Called once, before the first attempt. A sandbox is lost when it ends though nobody released it.
        """

    def use_shared_cores(self, cores: Sequence[int]) -> None:
        """Takes the cores that services with `HostedService.shared` share.

        Called on the event loop after every registration; it must not block. A scheduler that was restarted may give
        others than before; what runs goes on, on the new ones.
        """

    def service_states(self) -> Sequence[manager_service_pb2.ServiceState]:
        """Returns the state of each service whose models or images come and go; sent with every heartbeat."""
        return []

    def take_demand(self, demand: manager_service_pb2.ServiceDemand) -> None:
        """Learns the demand for a service whose instances come and go. Called on the event loop; must not block."""

    async def update_weights(self, update: manager_service_pb2.UpdateWeights, payloads: PayloadAccess) -> None:
        """Brings an engine to new weights and proves them; `service_states` reports how this ends.

        A repeated update is done once. Called beside attempts; cancelled when the manager leaves.
        """

    def on_service_change(self, report: Callable[[], None]) -> None:
        """Takes the function to call, on the event loop, when a state is another than before.

        Called once, before the first attempt. What it reports is sent at once and not with the next heartbeat.
        """

    async def serve(self) -> None:
        """Does the work beside its attempts until it is cancelled; returns at once where there is none.

        Called once, before the first attempt. Attempts may outlive it at the end.
        """

    async def wait_failed(self) -> str | None:
        """Waits until it is dead for good, for instance with its engine, and returns why.

        Its manager then leaves: living on, it would fail every attempt. None, at once, means that it cannot die.
        """
        return None

    async def close(self) -> None:
        """Releases everything. Called once, shielded and time-limited."""
