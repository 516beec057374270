"""Runs a manager process: dials the scheduler, serves it until told to leave, and leaves in good order."""

from __future__ import annotations

import faulthandler
import random
import signal

import anyio
import grpc
import grpc.aio
import structlog
from anyio.abc import TaskStatus
from callsheet.managers.executor import Executor
from callsheet.managers.manager import Manager
from callsheet.managers.payloads import SchedulerPayloads
from callsheet.managers.session import FAREWELL_S, Session, SessionEndedError
from callsheet.managers.settings import ManagerSettings
from callsheet.timing.backoff import backoff_s
from structlog.typing import FilteringBoundLogger

log: FilteringBoundLogger = structlog.get_logger()

MAX_MESSAGE_BYTES = 64 << 20
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # The channel's own backoff only delays ours, see backoff_s.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # A scheduler that vanished without closing its connections is noticed by the heartbeats: they must be acknowledged
    # within the keepalive timeout (TCP_USER_TIMEOUT). Pings are rarer than any server minds by default.
    ("grpc.keepalive_time_ms", 360_000),
    ("grpc.keepalive_timeout_ms", 10_000),
)
CHANNEL_CLOSE_S = 2.0
# Of a lease: so much may pass before a manager dials again.
_REDIAL_SHARE = 0.25


class RegistrationRefusedError(Exception):
    """The scheduler found the first registration invalid; trying again cannot help."""


class ExecutorFailedError(Exception):
    """The executor is dead for good; a new process can start afresh."""


async def run_manager(
    settings: ManagerSettings,
    executor: Executor,
    *,
    stop: anyio.Event | None = None,
    task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Runs a manager until it has left: on SIGTERM or SIGINT, on `stop`, or because the scheduler asked it to drain.

    It takes no new attempts then, lets running ones end, delivers their ends and closes the executor, each for a
    limited time. A second signal cuts all but the last short. A scheduler that goes away does not end it: it dials
    again for ever, while attempts go on.

    Args:
        settings: Its settings.
        executor: What runs the attempts; closed before the return.
        stop: Set to have it leave, as by a first signal.
        task_status: Told when the first registration was accepted.

    Raises:
        RegistrationRefusedError: The scheduler refused the first registration with INVALID_ARGUMENT.
        ExecutorFailedError: The executor died; the manager has left in good order.
    """
    channel = settings.credentials.open_channel(settings.scheduler_address, CHANNEL_OPTIONS)
    try:
        await _Life(settings, executor, channel, task_status).run(stop)
    finally:
        await _close_executor(executor, settings.close_timeout_s)
        with anyio.move_on_after(CHANNEL_CLOSE_S, shield=True):
            await channel.close()
        log.info("left", manager=settings.manager_id)


async def _close_executor(executor: Executor, timeout_s: float) -> None:
    try:
        with anyio.CancelScope(shield=True), anyio.fail_after(timeout_s):
            await executor.close()
    except (Exception, anyio.get_cancelled_exc_class()) as error:
        log.error("executor_close_failed", exc_info=error)


class _Life:
    """One call of `run_manager`."""

    def __init__(
        self,
        settings: ManagerSettings,
        executor: Executor,
        channel: grpc.aio.Channel,
        task_status: TaskStatus[None],
    ) -> None:
        self._settings = settings
        self._executor = executor
        self._channel = channel
        self._task_status = task_status
        self._registered = False
        self._failures = 0
        self._longest_wait_s = settings.reconnect_max_s
        self._drain = anyio.Event()
        self._leave = anyio.Event()
        self._left = anyio.Event()
        self._executor_failure: str | None = None

    async def run(self, stop: anyio.Event | None) -> None:
        refusals: list[RegistrationRefusedError] = []
        try:
            async with anyio.create_task_group() as tasks:
                payloads = SchedulerPayloads(
                    self._channel,
                    self._settings.max_payload_bytes,
                    self._settings.payload_timeout_s,
                    self._settings.credentials,
                )
                manager = Manager(
                    settings=self._settings,
                    executor=self._executor,
                    payloads=payloads,
                    tasks=tasks,
                    on_registered=self._note_registered,
                    on_drain=self._drain.set,
                )
                if self._settings.handle_signals:
                    tasks.start_soon(self._watch_signals, tasks.cancel_scope)
                if stop is not None:
                    tasks.start_soon(self._drain_on, stop)
                tasks.start_soon(self._drain_on_failure)
                tasks.start_soon(self._executor.serve)
                tasks.start_soon(manager.attempts.watch)
                tasks.start_soon(self._stay_connected, manager)
                await self._drain.wait()
                await self._leave_in_order(manager)
                tasks.cancel_scope.cancel()
        except* RegistrationRefusedError as group:
            refusals.extend(error for error in group.exceptions if isinstance(error, RegistrationRefusedError))
        if refusals:
            raise refusals[0]
        if self._executor_failure is not None:
            raise ExecutorFailedError(self._executor_failure)

    async def _drain_on_failure(self) -> None:
        self._executor_failure = await self._executor.wait_failed()
        if self._executor_failure is not None:
            log.error("executor_failed", manager=self._settings.manager_id, reason=self._executor_failure)
            self._drain.set()

    async def _leave_in_order(self, manager: Manager) -> None:
        await manager.drain()
        self._leave.set()
        if self._registered:
            with anyio.move_on_after(FAREWELL_S):
                await self._left.wait()
        else:
            self._task_status.started()

    async def _watch_signals(self, everything: anyio.CancelScope) -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for number in signals:
                if self._drain.is_set():
                    log.warning("stopping_at_once", manager=self._settings.manager_id, signal=number.name)
                    everything.cancel()
                    return
                log.info("stopping", manager=self._settings.manager_id, signal=number.name)
                # Whatever holds it up then, such as a thread that waits for a device.
                faulthandler.dump_traceback_later(self._settings.longest_end_s, exit=True)
                self._drain.set()

    async def _drain_on(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._drain.set()

    async def _stay_connected(self, manager: Manager) -> None:
        """Keeps a session up until it is time to leave."""
        session = Session(self._channel, manager, self._settings, self._leave)
        while not self._leave.is_set():
            try:
                await session.run()
            except SessionEndedError as error:
                await self._wait_to_redial(error)
        self._left.set()

    async def _wait_to_redial(self, error: SessionEndedError) -> None:
        settings = self._settings
        if error.code is grpc.StatusCode.INVALID_ARGUMENT and not self._registered:
            raise RegistrationRefusedError(f"the scheduler refused the registration: {error}") from error
        self._failures += 1
        delay = backoff_s(self._failures, settings.reconnect_initial_s, self._longest_wait_s, random=random.random())
        log.warning("disconnected", manager=settings.manager_id, reason=str(error), redial_in_s=round(delay, 3))
        await anyio.sleep(delay)

    def _note_registered(self, lease_s: float) -> None:
        self._failures = 0
        # A scheduler that was started again gives up what is not back by then.
        self._longest_wait_s = min(self._settings.reconnect_max_s, lease_s * _REDIAL_SHARE)
        if not self._registered:
            self._registered = True
            self._task_status.started()
