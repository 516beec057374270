"""A manager as one thing: registration, and every item of the scheduler taken to where it is handled."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup
from callsheet.managers.attempt_runner import AttemptRunner
from callsheet.managers.cancellation import cancellation_requested
from callsheet.managers.dispatch_intake import DispatchIntake
from callsheet.managers.ends import StopOrder, StopReport
from callsheet.managers.executor import Executor, PayloadAccess
from callsheet.managers.fencing import Token
from callsheet.managers.reports import Mailbox, Reports
from callsheet.managers.sandbox_memory import SandboxMemory
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import manager_service_pb2
from structlog.typing import FilteringBoundLogger

log: FilteringBoundLogger = structlog.get_logger()


class Manager:
    """State of a manager that stays while streams come and go; each stream is a `Session`.

    Args:
        settings: Its settings.
        executor: Runs its attempts.
        payloads: Reads and writes the payloads of its executor.
        tasks: The task group of everything that it starts.
        on_registered: Called with the lease, in seconds, when a registration was accepted.
        on_drain: Called when the scheduler wants it to leave.
    """

    def __init__(
        self,
        *,
        settings: ManagerSettings,
        executor: Executor,
        payloads: PayloadAccess,
        tasks: TaskGroup,
        on_registered: Callable[[float], None],
        on_drain: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._executor = executor
        self._payloads = payloads
        self._tasks = tasks
        self._on_registered = on_registered
        self._incarnation = uuid.uuid4().hex
        self._memory = SandboxMemory()
        self.reports = Reports(settings)
        self.attempts = AttemptRunner(
            executor=executor,
            payloads=payloads,
            reports=self.reports,
            memory=self._memory,
            settings=settings,
            tasks=tasks,
        )
        self._intake = DispatchIntake(
            executor=executor,
            runner=self.attempts,
            reports=self.reports,
            memory=self._memory,
            max_attempts=settings.max_attempts,
        )
        self._handlers: dict[str, Callable[[Any], None]] = {
            "dispatch": self._intake.dispatch,
            "resize": self.attempts.resize,
            "cancel": self.attempts.cancel,
            "ends_acknowledged": self._acknowledged,
            "release_sandbox": self._release,
            "drain": lambda _: on_drain(),
            "update_weights": self._update_weights,
            "service_demand": executor.take_demand,
        }
        executor.on_sandbox_lost(self._sandbox_lost)
        executor.on_service_change(self.heartbeat)

    def registration(self) -> manager_service_pb2.Registration:
        """Returns what the manager introduces itself with: what it is, and what it still runs and holds."""
        self.reports.registering()
        sandboxes = self._executor.sandboxes()
        self._memory.retain(sandboxes)
        return manager_service_pb2.Registration(
            manager_id=self._settings.manager_id,
            incarnation=self._incarnation,
            node=self._executor.node(self._settings.node),
            services=self._executor.services(),
            running=self.attempts.describe_running(),
            sandboxes=sandboxes,
            capabilities=self._executor.capabilities(),
        )

    def connected(self, registered: manager_service_pb2.Registered, mailbox: Mailbox) -> None:
        """Takes the answer to the registration, and where to put what is to be sent."""
        log.info(
            "registered",
            manager=self._settings.manager_id,
            epoch=registered.epoch,
            running=len(self.attempts),
            unacknowledged=self.reports.unacknowledged,
        )
        self._intake.enter_epoch(registered.epoch)
        self._executor.use_shared_cores(tuple(registered.shared_cores))
        self.reports.open(mailbox)
        self._on_registered(registered.lease.ToTimedelta().total_seconds())

    def disconnected(self) -> None:
        """Notes that no stream is up any more."""
        self.reports.close()

    def heartbeat(self) -> None:
        """Reports that it is alive, and what it takes to begin on its services."""
        self.reports.heartbeat(self._executor.service_states())

    def handle(self, item: manager_service_pb2.SchedulerItem) -> None:
        """Takes an item of the scheduler."""
        name = item.WhichOneof("item")
        handler = None if name is None else self._handlers.get(name)
        if name is None or handler is None:
            log.warning("unexpected_item", item=name)
            return
        handler(getattr(item, name))

    async def drain(self) -> None:
        """Takes no new attempts, and returns once running ones are over and their ends acknowledged, or time is up."""
        settings = self._settings
        log.info("draining", manager=settings.manager_id, running=len(self.attempts))
        self._intake.drain()
        self.reports.draining()
        with anyio.move_on_after(settings.drain_timeout_s):
            await self.attempts.wait_idle()
        if len(self.attempts):
            log.warning("drain_timed_out", manager=settings.manager_id, running=len(self.attempts))
            self.attempts.stop_all(StopOrder(StopReport.MANAGER_STOPPED, "the manager is leaving"))
            with anyio.move_on_after(settings.stop_grace_s + 1.0):
                await self.attempts.wait_idle()
        with anyio.move_on_after(settings.acknowledge_timeout_s):
            await self.reports.wait_acknowledged()
        if self.reports.unacknowledged:
            log.warning("ends_not_acknowledged", manager=settings.manager_id, ends=self.reports.unacknowledged)

    def _acknowledged(self, acknowledged: manager_service_pb2.EndsAcknowledged) -> None:
        epoch = acknowledged.epoch
        for sequence in acknowledged.sequences:
            self.reports.acknowledged(Token(epoch, sequence))

    def _sandbox_lost(self, sandbox: manager_service_pb2.SandboxState, reason: str) -> None:
        log.warning("sandbox_lost", reason=reason, **_sandbox_for_log(sandbox))
        self._memory.forget(sandbox)
        self.reports.sandbox_lost(sandbox, reason)

    def _update_weights(self, update: manager_service_pb2.UpdateWeights) -> None:
        wanted = manager_service_pb2.UpdateWeights()
        wanted.CopyFrom(update)
        self._tasks.start_soon(self._change_weights, wanted)

    async def _change_weights(self, update: manager_service_pb2.UpdateWeights) -> None:
        """The executor limits each of its parts; it alone knows in what state it left the engine."""
        try:
            await self._executor.update_weights(update, self._payloads)
        except (Exception, anyio.get_cancelled_exc_class()) as error:
            if cancellation_requested():
                raise
            log.error("weight_update_failed", exc_info=error, service=update.service, version=update.version)

    def _release(self, release: manager_service_pb2.ReleaseSandbox) -> None:
        sandbox = manager_service_pb2.SandboxState()
        sandbox.CopyFrom(release.sandbox)
        self._memory.forget(sandbox)
        self._tasks.start_soon(self._release_sandbox, sandbox)

    async def _release_sandbox(self, sandbox: manager_service_pb2.SandboxState) -> None:
        try:
            with anyio.fail_after(self._settings.control_timeout_s):
                await self._executor.release_sandbox(sandbox)
        except (Exception, anyio.get_cancelled_exc_class()) as error:
            if cancellation_requested():
                raise
            log.error("sandbox_release_failed", exc_info=error, **_sandbox_for_log(sandbox))


def _sandbox_for_log(sandbox: manager_service_pb2.SandboxState) -> dict[str, str]:
    return {"job": sandbox.job_id, "trajectory": sandbox.trajectory_id, "sandbox": sandbox.sandbox_id}
