"""A scheduler process: journal, core, loop and gRPC server, started and stopped together."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc
import grpc
import structlog
from callsheet.scheduler.access.token_file import TokenFile
from callsheet.scheduler.core.recovery import RequestDecoder, restore
from callsheet.scheduler.core.state.announced_managers import ExpectedRole
from callsheet.scheduler.core.state.held_memory import HeldMemory
from callsheet.scheduler.core.state.scheduler_state import CoreSettings, SchedulerState
from callsheet.scheduler.core.words.costs import read_prices
from callsheet.scheduler.core.words.records import SchedulerAlive
from callsheet.scheduler.history.reader import HistoryReader
from callsheet.scheduler.planner.answers.wanted import wanted_in_parts
from callsheet.scheduler.planner.engines.knowledge import EngineKnowledge
from callsheet.scheduler.planner.protocol import Planner
from callsheet.scheduler.service.audit import AuditTrail
from callsheet.scheduler.service.background import Background
from callsheet.scheduler.service.codec.decode import decode_action, decode_job, decode_trajectory
from callsheet.scheduler.service.codec.decode_buffer import decode_result
from callsheet.scheduler.service.codec.decode_weights import decode_plan
from callsheet.scheduler.service.codec.outcomes import encode_outcome
from callsheet.scheduler.service.garbage_collection import short_pauses
from callsheet.scheduler.service.learning import Learning, load_learned
from callsheet.scheduler.service.limits.guard import TokenGuard
from callsheet.scheduler.service.limits.peer_limits import LimitingInterceptor, PeerLimits
from callsheet.scheduler.service.limits.refusal_log import RefusalLog
from callsheet.scheduler.service.limits.unread import UnreadBytes
from callsheet.scheduler.service.loop import Clock, CoreLoop
from callsheet.scheduler.service.payloads.claims import PayloadClaims
from callsheet.scheduler.service.payloads.idle import IdlePayloads
from callsheet.scheduler.service.payloads.rights import PayloadRights
from callsheet.scheduler.service.planning import SolverPlanning, make_planning
from callsheet.scheduler.service.rpc.admin_servicer import AdminServicer
from callsheet.scheduler.service.rpc.client_servicer import ClientServicer
from callsheet.scheduler.service.rpc.manager_servicer import ManagerServicer
from callsheet.scheduler.service.rpc.payload_servicer import PayloadServicer
from callsheet.scheduler.service.rpc.refusing_interceptor import RefusingInterceptor
from callsheet.scheduler.service.rpc.tls import CertificateFiles
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.scheduler.service.turns import in_turns
from callsheet.scheduler.store.journal import Journal, open_journal
from callsheet.scheduler.store.local_payloads import LocalPayloadStore
from callsheet.scheduler.store.payloads import PayloadStore, PayloadStoreError
from callsheet.scheduler.store.writer import GroupCommitWriter
from callsheet.scheduler.web.server import MetricsServer
from callsheet.scheduler.web.tally import Tally
from callsheet.v1 import (
    action_pb2,
    admin_service_pb2_grpc,
    buffer_pb2,
    client_service_pb2_grpc,
    job_pb2,
    manager_service_pb2_grpc,
    payload_service_pb2_grpc,
    weights_pb2,
)
from callsheet.v1.names import MAX_MESSAGE_BYTES
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

if TYPE_CHECKING:
    from callsheet.scheduler.service.telemetry import SpanSender


# With the default limits a burst of about a thousand simultaneous unary calls is partly cancelled.
MAX_PENDING_REQUESTS = 100_000
CLOSE_TIMEOUT = 10.0
UNUSED_SWEEP = 3600.0

_log = structlog.get_logger(__name__)

JOURNALLED: Final = RequestDecoder(
    job=lambda spec: decode_job(job_pb2.JobSpec.FromString(spec)),
    trajectory=lambda spec: decode_trajectory(job_pb2.TrajectorySpec.FromString(spec)),
    action=lambda spec: decode_action(action_pb2.ActionSpec.FromString(spec))[0],
    weights=lambda plan: decode_plan(weights_pb2.RolloutPlan.FromString(plan))[0],
    result=lambda encoded: decode_result(buffer_pb2.TrajectoryResult.FromString(encoded))[0],
)
"""Decoder of the requests that the journal has."""


class JournalFailedError(RuntimeError):
    """A commit failed; the process ends rather than acknowledge what may be lost."""


async def serve(
    settings: SchedulerSettings,
    expected: tuple[ExpectedRole, ...] = (),
    *,
    on_metrics: Callable[[str], None] = lambda url: None,
    task_status: anyio.abc.TaskStatus[str] = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Runs a scheduler until cancelled; reports its address ("host:port") once it takes calls.

    Args:
        settings: The scheduler's.
        expected: Managers that will register: what only they may serve waits until they have.
        on_metrics: Told the URL of the metrics, if there are any, before the address.
        task_status: Told the address.

    Raises:
        JournalError: The journal cannot be opened, for instance because another scheduler holds it.
        JournalFailedError: A commit failed.
        OSError: The address cannot be bound.
        ValueError: A file of TLS cannot be read.
    """
    if (warning := settings.access.check_listen(settings.listen)) is not None:
        _log.warning("insecure", listen=settings.listen, reason=warning)
    opening = partial(open_journal, kept_actions=settings.closed_actions)
    journal = await anyio.to_thread.run_sync(opening, settings.data_dir, settings.database_url)
    try:
        payloads = await _open_payloads(settings)
        try:
            with short_pauses():
                await _serve_with(settings, expected, journal, payloads, on_metrics=on_metrics, task_status=task_status)
        finally:
            with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
                await payloads.aclose()
    finally:
        journal.close()


class _Failure:
    """The first error of a commit, and the event that it has come."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.noted = anyio.Event()

    def note(self, error: BaseException) -> None:
        self.error = self.error or error
        self.noted.set()


async def _serve_with(
    settings: SchedulerSettings,
    expected: tuple[ExpectedRole, ...],
    journal: Journal,
    payloads: PayloadStore,
    *,
    on_metrics: Callable[[str], None],
    task_status: anyio.abc.TaskStatus[str],
) -> None:
    failure = _Failure()
    held_memory = HeldMemory()
    predictors = await anyio.to_thread.run_sync(load_learned, journal, held_memory)
    engines = EngineKnowledge()
    planning = make_planning(settings.planner, settings.hold_after, predictors, engines)
    tally = Tally()
    recover = partial(_recover, held_memory=held_memory)
    state = await anyio.to_thread.run_sync(recover, settings, expected, journal, planning, tally)
    await payloads.release_all_but(list(state.jobs))
    writer = GroupCommitWriter(journal, failure.note)
    learning = Learning(predictors, engines, journal, settings.predictor_save_interval, held_memory)
    rights = PayloadRights(payloads, state)
    claims = PayloadClaims(payloads, rights, lambda job_id: job_id in state.jobs)
    audit = AuditTrail(settings.data_dir / "audit.jsonl")
    background = Background(journal, claims, lambda job_id: job_id in state.jobs)
    loop = CoreLoop(
        state,
        planning,
        writer,
        background,
        learning.attempts_ended,
        stopwatch=time.perf_counter,
        tally=tally,
        heartbeat_interval=settings.heartbeat_interval,
        max_journal_backlog=settings.max_journal_backlog,
        max_pending_bytes=settings.limits.max_pending_bytes,
    )
    spans = _span_sender(settings, loop)
    admin = partial(AdminServicer, loop, predictors, planning, audit, history=HistoryReader(journal.reader))
    writer.start()
    try:
        server = _grpc_server(settings, loop, partial(PayloadServicer, payloads, rights), claims, admin, audit=audit)
        async with server as address, anyio.create_task_group() as tasks:
            upkeep = (partial(_remove_unused, payloads), partial(_tell_alive, loop, writer, settings.alive_interval))
            for runs in (claims.run, loop.run, background.run, audit.run, learning.run, *upkeep):
                tasks.start_soon(runs)
            if isinstance(planning, SolverPlanning):
                tasks.start_soon(planning.run, loop.wake)
            tasks.start_soon(IdlePayloads(payloads, claims, state, loop.clock.now).run)
            if settings.metrics_listen is not None:
                on_metrics(await tasks.start(_metrics(settings, loop).serve, settings.metrics_listen))
            _log.info("scheduler_started", address=address, epoch=state.epoch)
            task_status.started(address)
            await failure.noted.wait()
            raise JournalFailedError(f"a commit of the journal failed: {failure.error}") from failure.error
    finally:
        await _close(writer, None if failure.error else learning, audit, spans)


def _span_sender(settings: SchedulerSettings, loop: CoreLoop) -> SpanSender | None:
    if settings.otlp_endpoint is None:
        return None
    try:
        from callsheet.scheduler.service.telemetry import SpanSender  # Not above: an extra installs what it needs.
    except ModuleNotFoundError as error:
        rule = f"needs {error.name}, which is not installed: pip install 'callsheet[telemetry]'"
        raise ValueError(f"otlp_endpoint: {rule}") from error
    sender = SpanSender(settings.otlp_endpoint, loop.tally.spans)
    loop.on_finished = sender.committed
    sender.start()
    return sender


async def _close(
    writer: GroupCommitWriter, learning: Learning | None, audit: AuditTrail, spans: SpanSender | None
) -> None:
    """Writes what is left, within `CLOSE_TIMEOUT` seconds; what was learned only if the journal works."""
    with anyio.move_on_after(CLOSE_TIMEOUT, shield=True):
        await writer.close(CLOSE_TIMEOUT)
        if learning is not None:
            await learning.close()
        await audit.flush()
        if spans is not None:
            await anyio.to_thread.run_sync(spans.close)


def _recover(
    settings: SchedulerSettings,
    expected: tuple[ExpectedRole, ...],
    journal: Journal,
    planning: Planner,
    tally: Tally,
    *,
    held_memory: HeldMemory,
) -> SchedulerState:
    epoch = journal.begin_epoch()
    core = CoreSettings(
        max_open_actions=settings.max_open_actions,
        max_open_bytes=settings.limits.max_open_bytes,
        max_job_open_actions=settings.limits.max_job_open_actions,
        max_job_open_bytes=settings.limits.max_job_open_bytes,
        max_open_jobs=settings.limits.max_open_jobs,
        max_open_trajectories=settings.limits.max_open_trajectories,
        max_job_open_trajectories=settings.limits.max_job_open_trajectories,
        max_orphan_bytes=settings.limits.max_pending_bytes,
        manager_lease=settings.manager_lease,
        cancel_grace=settings.cancel_grace,
        expected=expected,
        closed_actions=settings.closed_actions,
        closed_actions_s=settings.closed_actions_s,
        finished_actions=settings.finished_actions,
        finished_actions_bytes=settings.finished_actions_bytes,
        finished_actions_s=settings.finished_actions_s,
        job_grace=settings.job_grace,
        expired_job_lifetime=settings.expired_job_lifetime,
        job_idle_timeout=settings.job_idle_timeout,
        max_buffered=settings.max_buffered,
    )
    state = SchedulerState(epoch, tally.counting(encode_outcome), core)
    state.held_memory = held_memory
    if isinstance(planning, SolverPlanning):
        planning.attach(state)
    restore(state, journal.load(), JOURNALLED, Clock().now())
    return state


def _metrics(settings: SchedulerSettings, loop: CoreLoop) -> MetricsServer:
    from callsheet.scheduler.web.metrics import collect, render  # Not above: who wants no metrics does without them.

    async def scrape() -> bytes:
        # The state is read between two steps of the loop; its text is made beside it.
        wanted = await in_turns(wanted_in_parts(loop.state))
        return await anyio.to_thread.run_sync(render, collect(loop.state, loop.tally, wanted, loop.clock.now()))

    return MetricsServer(scrape, settings.access, loop.tally.refused)


async def _tell_alive(loop: CoreLoop, writer: GroupCommitWriter, interval: float) -> None:
    """Journals now and then that a scheduler runs, for the next one to know how long there was none."""
    while True:
        if loop.state.jobs:
            writer.submit([SchedulerAlive(loop.clock.now())], lambda: None)
        await anyio.sleep(interval)


async def _remove_unused(payloads: PayloadStore) -> None:
    """Removes payloads that no job ever used, once an hour."""
    while True:
        try:
            removed = await payloads.remove_unused()
        except PayloadStoreError as error:
            _log.error("unused_payloads_not_removed", reason=str(error))
        else:
            _log.log(logging.INFO if removed else logging.DEBUG, "unused_payloads_removed", count=removed)
        await anyio.sleep(UNUSED_SWEEP)


async def _open_payloads(settings: SchedulerSettings) -> PayloadStore:
    # As that of the core it never steps, nor goes on while the machine sleeps.
    clock = Clock().now
    if settings.redis_url is not None:
        # Every other scheduler starts sooner without it.
        from callsheet.scheduler.store.redis_payloads import RedisPayloadStore

        return await RedisPayloadStore.open(
            settings.redis_url,
            namespace=settings.redis_namespace,
            max_bytes=settings.max_payload_bytes,
            clock=clock,
        )
    return await LocalPayloadStore.open(
        settings.data_dir / "payloads",
        max_bytes=settings.max_payload_bytes,
        max_stored_bytes=settings.limits.max_stored_bytes,
        clock=clock,
    )


@contextlib.asynccontextmanager
async def _grpc_server(
    settings: SchedulerSettings,
    loop: CoreLoop,
    payloads: Callable[[PeerLimits], PayloadServicer],
    claims: PayloadClaims,
    admin: Callable[[PeerLimits], AdminServicer],
    *,
    audit: AuditTrail,
) -> AsyncIterator[str]:
    refusals, limits = RefusalLog(count=loop.tally.refused), PeerLimits(settings.limits)
    unread = UnreadBytes(settings.limits.max_unread_bytes)
    guards = [
        TokenGuard(TokenFile(tokens), refusals, on_denied=audit.denied)
        for tokens in [settings.access.tokens]
        if tokens is not None
    ]
    server = grpc.aio.server(
        interceptors=[*guards, RefusingInterceptor(refusals, loop.tally.messages), LimitingInterceptor(limits)],
        options=[
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            ("grpc.server.max_pending_requests", MAX_PENDING_REQUESTS),
            ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING_REQUESTS),
            ("grpc.so_reuseport", 0),
            # Idle streams are kept alive by their clients; without these the server would end them for it.
            ("grpc.keepalive_permit_without_calls", 1),
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
            # A client whose machine is gone says nothing; its jobs' graces begin once a ping goes unanswered. Clients
            # answer pings whatever they do, and count none. By default gRPC sends no more than two to an idle peer.
            ("grpc.keepalive_time_ms", round(settings.keepalive_interval * 1000)),
            ("grpc.keepalive_timeout_ms", round(settings.keepalive_timeout * 1000)),
            ("grpc.http2.max_pings_without_data", 0),
            # By a slip of its own gRPC (up to 1.85 at least) waits so long instead, by default a minute.
            ("grpc.http2.ping_timeout_ms", round(settings.keepalive_timeout * 1000)),
        ],
    )
    clients = ClientServicer(loop, claims, limits, unread, audit, prices=read_prices(settings.prices))
    managers = ManagerServicer(loop, claims, unread)
    client_service_pb2_grpc.add_ClientServiceServicer_to_server(clients, server)
    manager_service_pb2_grpc.add_ManagerServiceServicer_to_server(managers, server)
    admin_service_pb2_grpc.add_AdminServiceServicer_to_server(admin(limits), server)
    payload_service_pb2_grpc.add_PayloadServiceServicer_to_server(payloads(limits), server)
    names = [f"callsheet.v1.{name}Service" for name in ("Client", "Manager", "Admin", "Payload")]
    health_servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
    reflection.enable_server_reflection([*names, health.SERVICE_NAME, reflection.SERVICE_NAME], server)
    host, _, _ = settings.listen.rpartition(":")
    try:
        port = _bind(server, settings)
    except RuntimeError as error:
        raise OSError(f"listen: cannot bind {settings.listen!r}; it is in use or not this machine's") from error
    await server.start()
    for name in ["", *names]:
        await health_servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    try:
        yield f"{host}:{port}"
    finally:
        with anyio.move_on_after(settings.shutdown_grace + 5.0, shield=True):
            await health_servicer.enter_graceful_shutdown()
            await server.stop(settings.shutdown_grace)


def _bind(server: grpc.aio.Server, settings: SchedulerSettings) -> int:
    access = settings.access
    if access.tls_cert is None or access.tls_key is None:
        return server.add_insecure_port(settings.listen)
    files = CertificateFiles(access.tls_cert, access.tls_key, access.tls_client_ca)
    return server.add_secure_port(settings.listen, files.credentials())
