"""A scheduler that knows many nodes and actions, and how long each call holds its event loop.

The service is the real one, with its journal and its gRPC server. Only the managers' streams have no sockets: their
ends in the scheduler are real, too, and what they are told is read here.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import grpc
import pytest
import structlog
from callsheet.scheduler.core.state.entities import Action, Attempt
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind, ActionState
from callsheet.scheduler.service import server
from callsheet.scheduler.service.codec.manager_wire import decode_registration
from callsheet.scheduler.service.limits.unread import UnreadBytes
from callsheet.scheduler.service.loop import CoreLoop
from callsheet.scheduler.service.outbox import Outbox
from callsheet.scheduler.service.rpc.client_servicer import ClientServicer
from callsheet.scheduler.service.sessions import ClientStream, ManagerStream
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import action_pb2, buffer_pb2, client_service_pb2, job_pb2, manager_service_pb2, weights_pb2
from google.protobuf import duration_pb2

Item = client_service_pb2.ClientItem
LARGE, OTHER, GROUPED, BUFFERED, STALE, EXPIRING = "large", "other", "grouped", "buffered", "stale", "expiring"
CORES = 4
# Long enough for the slowest of machines: who waits here says so by the timeout of the test.
PATIENCE_S = 1800.0
RUN = action_pb2.EnvStepInput(command=action_pb2.Command(shell="true"))
ONE_CORE = action_pb2.Demand(resources=[action_pb2.ResourceDemand(resource="cpu", min_milli_units=1000)])
CALL: Mapping[str, Any] = {"tool_call": action_pb2.ToolCallInput(method="m"), "service": "tools", "demand": ONE_CORE}


@dataclass
class Held:
    """The longest turn on an event loop.

    Attributes:
        wall_s: Seconds, those included in which the processor did something else.
        cpu_s: Seconds of the loop's thread, of the turn with the most of them.
        what: Whose turn that was.
        turns: How many turns there were.
        collected_s: Seconds of the longest collection of garbage meanwhile, which no call brought about.
    """

    wall_s: float = 0.0
    cpu_s: float = 0.0
    what: str = ""
    turns: int = 0
    collected_s: float = 0.0

    def note(self, wall_s: float, cpu_s: float, handle: Any) -> None:
        """Takes a turn that was."""
        self.turns += 1
        self.wall_s = max(self.wall_s, wall_s)
        if cpu_s > self.cpu_s:
            self.cpu_s, self.what = cpu_s, _name(handle)


def _name(handle: Any) -> str:
    callback = handle._callback
    task = getattr(callback, "__self__", None)
    if isinstance(task, asyncio.Task):
        return str(getattr(task.get_coro(), "__qualname__", task))
    return str(getattr(callback, "__qualname__", callback))


class Watch:
    """Notes the turns of the loop of this thread."""

    def __init__(self) -> None:
        self.held = Held()
        self.collected_s = self._began = 0.0

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Notes them within the block."""
        run, thread = asyncio.Handle._run, threading.get_ident()

        def timed(handle: Any) -> None:
            if threading.get_ident() != thread:
                run(handle)
                return
            wall, cpu = time.perf_counter(), time.thread_time()
            run(handle)
            self.held.note(time.perf_counter() - wall, time.thread_time() - cpu, handle)

        gc.callbacks.append(self._collecting)
        with pytest.MonkeyPatch.context() as patches:
            patches.setattr(asyncio.Handle, "_run", timed)
            yield
        gc.callbacks.remove(self._collecting)

    def _collecting(self, phase: str, _: dict[str, int]) -> None:
        """Notes how long the garbage collector takes, which belongs to no call."""
        if phase == "start":
            self._began = time.thread_time()
        else:
            self.collected_s = max(self.collected_s, time.thread_time() - self._began)

    def begin(self) -> Held:
        """Begins anew."""
        self.held, self.collected_s = Held(), 0.0
        return self.held


@dataclass
class Busy:
    """A running scheduler.

    Attributes:
        loop: Its loop.
        channel: To it, for threads.
        watch: Of its event loop.
        servicer: What reads a client's session.
        client: That session.
        metrics: URL of its metrics.
        streams: Of its managers.
    """

    loop: CoreLoop
    channel: grpc.Channel
    watch: Watch
    servicer: ClientServicer
    client: ClientStream
    metrics: str
    streams: dict[str, ManagerStream] = field(default_factory=dict)
    sequence: int = 0

    @property
    def records(self) -> int:
        """The most that one step wrote to the journal."""
        return int(getattr(type(self.loop), "records", 0))

    @property
    def state(self) -> SchedulerState:
        """Its core."""
        return self.loop.state

    async def call(self, service: str, rpc: str, request: Any) -> Any:
        """Calls an rpc from another thread; returns its answer, or its refusal."""
        stub = getattr(__import__("callsheet.v1", fromlist=[service]), service)
        name = next(each for each in vars(stub) if each.endswith("ServiceStub"))
        method = getattr(getattr(stub, name)(self.channel), rpc)

        def ask() -> Any:
            try:
                return method(request, timeout=PATIENCE_S)
            except grpc.RpcError as error:
                return error

        return await anyio.to_thread.run_sync(ask)

    async def idle(self) -> None:
        """Waits until nothing is left to be done."""
        writer = self.loop._writer
        quiet = 0
        with anyio.fail_after(PATIENCE_S):
            while quiet < 3:
                await anyio.sleep(0.01)
                busy = self.loop.stepper.has_more or writer.backlog or self.loop._wake.is_set()
                quiet = 0 if busy else quiet + 1

    async def say(self, *items: Item) -> None:
        """Says something on a client's session, as the service reads it from a stream."""
        for item in items:
            self.sequence += 1
            item.sequence = self.sequence
        await self.servicer._read(self.client, client_service_pb2.ClientSessionRequest(items=items), "test")

    async def say_all(self, items: Iterable[Item]) -> None:
        """Says many, and waits until all is done."""
        portion: list[Item] = []
        for item in items:
            portion.append(item)
            if len(portion) == 1000:
                await self.say(*portion)
                portion = []
                await self.loop.wait_for_room()
                await anyio.lowlevel.checkpoint()
        await self.say(*portion)
        await self.idle()

    def register(self, number: int) -> None:
        """Registers the manager of a node."""
        name = manager_name(number)
        stream = self.streams[name] = ManagerStream(name, UnreadBytes())
        self.loop.post([decode_registration(stream, registration(number)), events.ManagerHeartbeat(name, stream)])

    def report(self, which: Callable[[Action], bool], ends: Callable[[Action], bool]) -> int:
        """Has managers begin the attempts that they were sent, and end some."""
        happened: list[events.Event] = []
        for attempt in self.state.attempts.values():
            action = attempt.action
            if not which(action):
                continue
            if action.state is ActionState.DISPATCHED:
                happened.append(events.AttemptStarted(attempt.manager_id, attempt.token))
            if ends(action):
                happened.append(_end_of(attempt))
        self.loop.post(happened)
        return len(happened)

    async def read_streams(self) -> None:
        """Reads what managers and clients are told, as sockets would."""
        while True:
            outboxes: list[Outbox[Any]] = [each.outbox for each in self.streams.values()]
            for number, outbox in enumerate([*outboxes, self.client.outbox]):
                if number % 50 == 0:
                    # These turns are those of sockets, one by one.
                    await anyio.lowlevel.checkpoint()
                while outbox.backlog:
                    await outbox.next_batch()
            await anyio.sleep(0.05)


def _end_of(attempt: Attempt) -> events.AttemptEnded:
    request = attempt.action.request
    sandbox = f"box-{request.trajectory_id}" if request.kind is ActionKind.ENV_RESET else ""
    end = (attempt.number, events.AttemptSucceeded(b"", sandbox), True, 0.5, request.body_hash)
    return events.AttemptEnded(attempt.manager_id, attempt.token, request.key, *end)


def manager_name(number: int) -> str:
    """The manager of a node."""
    return f"m{number:05}"


def registration(number: int) -> manager_service_pb2.Registration:
    """A manager on a node of its own, with sandboxes and tools; one in a hundred has an engine, too."""
    services = [
        manager_service_pb2.HostedService(
            name="sandbox", kinds=[action_pb2.ACTION_KIND_ENV_RESET, action_pb2.ACTION_KIND_ENV_STEP]
        ),
        manager_service_pb2.HostedService(name="tools", kinds=[action_pb2.ACTION_KIND_TOOL_CALL]),
    ]
    if number % 100 == 0:
        kinds = [action_pb2.ACTION_KIND_GENERATE]
        weights = manager_service_pb2.EngineWeights(standing=weights_pb2.WEIGHTS_STANDING_INITIAL)
        engine = manager_service_pb2.HostedService(name="model", kinds=kinds, slots=8, weights=weights)
        services.append(engine)
    cores = manager_service_pb2.NumaNode(cores=range(CORES))
    return manager_service_pb2.Registration(
        manager_id=manager_name(number),
        incarnation="first",
        node=manager_service_pb2.NodeSpec(node_id=f"n{number:05}", capacity={"memory": 8192}, numa_nodes=[cores]),
        services=services,
        capabilities={"isolation": "bubblewrap", "cpu": "affinity"},
    )


def job(job_id: str, **fields: Any) -> Item:
    """Opens a job."""
    return Item(open_job=job_pb2.JobSpec(job_id=job_id, detached=True, **fields))


def trajectory(job_id: str, name: str, **fields: Any) -> Item:
    """Opens a trajectory."""
    return Item(open_trajectory=job_pb2.TrajectorySpec(job_id=job_id, trajectory_id=name, **fields))


def finish(job_id: str, name: str) -> Item:
    """Closes a trajectory with a result."""
    result = buffer_pb2.TrajectoryResult(reward=1.0)
    request = client_service_pb2.CloseTrajectoryRequest(job_id=job_id, trajectory_id=name, result=result)
    return Item(close_trajectory=request)


def submit(job_id: str, action_id: str, trajectory_id: str = "", **payload: Any) -> Item:
    """Submits an action."""
    given = payload or CALL
    spec = action_pb2.ActionSpec(job_id=job_id, action_id=action_id, trajectory_id=trajectory_id, **given)
    return Item(submit=spec)


@dataclass(frozen=True)
class Size:
    """How much a scheduler knows.

    Attributes:
        nodes: Nodes, with a manager each.
        actions: Actions: a tenth with an outcome, two fifths that run, and half that wait.
        jobs: Further jobs in which nothing happens.
    """

    nodes: int
    actions: int
    jobs: int

    @property
    def trajectories(self) -> int:
        """Open trajectories with a sandbox; as many are in one group, without one."""
        return self.actions // 10


async def fill(busy: Busy, size: Size) -> None:
    """Lets a scheduler come to know so much."""
    for number in range(size.nodes):
        busy.register(number)
    await busy.idle()
    names = [f"t{number:06}" for number in range(size.trajectories)]
    evicted = job_pb2.Staleness(max_versions=1)
    await busy.say_all([job(LARGE), job(OTHER), job(GROUPED), job(BUFFERED), job(STALE, staleness=evicted)])
    await busy.say_all(job(f"idle{number}") for number in range(size.jobs))
    await busy.say_all(trajectory(LARGE, each) for each in names)
    await busy.say_all(submit(LARGE, f"reset-{each}", each, env_reset=action_pb2.EnvResetInput()) for each in names)
    is_reset = lambda action: action.request.kind is ActionKind.ENV_RESET  # noqa: E731
    with anyio.fail_after(PATIENCE_S):
        while busy.state.jobs[LARGE].open_actions:
            busy.report(is_reset, is_reset)
            await busy.idle()
    for verb in ("run", "wait"):
        await busy.say_all(submit(LARGE, f"{verb}-{each}", each, env_step=RUN) for each in names)
    rewards = size.actions - 3 * size.trajectories
    ended = rewards // 7
    await busy.say_all(submit(LARGE, f"r{number}") for number in range(ended))
    with anyio.fail_after(PATIENCE_S):
        while busy.state.jobs[LARGE].open_actions > 2 * size.trajectories:
            busy.report(lambda action: action.request.kind is ActionKind.TOOL_CALL, lambda _: True)
            await busy.idle()
    await busy.say_all(submit((LARGE, OTHER)[number % 2], f"q{number}") for number in range(rewards - ended))
    busy.report(lambda _: True, lambda _: False)
    await busy.idle()
    group = job_pb2.GroupSpec(group_id="g", size=min(size.trajectories, 10_000), quorum=1)
    await busy.say_all(trajectory(GROUPED, each, group=group) for each in names[: group.size])
    await busy.say_all(trajectory(STALE, each) for each in names)
    finished = names[:4096]
    await busy.say_all(trajectory(BUFFERED, each) for each in finished)
    await busy.say_all(finish(BUFFERED, each) for each in finished)
    grace = duration_pb2.Duration(nanos=100_000_000)
    await busy.say_all([Item(open_job=job_pb2.JobSpec(job_id=EXPIRING, grace=grace))])
    await busy.say_all(submit(EXPIRING, f"e{number}") for number in range(size.trajectories))


@asynccontextmanager
async def busy_scheduler(directory: Path, size: Size) -> AsyncIterator[Busy]:
    """Runs a scheduler that knows so much."""
    loops: list[CoreLoop] = []
    servicers: list[ClientServicer] = []

    class Noted(CoreLoop):
        records = 0

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            loops.append(self)

        def step(self) -> Any:
            done = super().step()
            Noted.records = max(Noted.records, len(done.records))
            return done

    class NotedServicer(ClientServicer):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            servicers.append(self)

    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    settings = SchedulerSettings(directory, listen="127.0.0.1:0", metrics_listen="127.0.0.1:0", manager_lease=1e6)
    urls: list[str] = []
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(server, "CoreLoop", Noted)
        patches.setattr(server, "ClientServicer", NotedServicer)
        async with anyio.create_task_group() as tasks:
            address = await tasks.start(functools.partial(server.serve, settings, on_metrics=urls.append))
            options = [("grpc.max_receive_message_length", -1)]
            with grpc.insecure_channel(str(address), options) as channel:
                busy = Busy(loops[0], channel, Watch(), servicers[0], ClientStream(UnreadBytes()), urls[0])
                tasks.start_soon(busy.read_streams)
                with busy.watch.watching():
                    await fill(busy, size)
                    yield busy
            tasks.cancel_scope.cancel()


def lines_of(table: Sequence[tuple[str, Held]]) -> Iterator[str]:
    """A table, the longest first."""
    for name, held in sorted(table, key=lambda each: -each[1].cpu_s):
        collected = f", {held.collected_s * 1e3:.0f} ms for garbage" if held.collected_s > 0.001 else ""
        yield f"{name}: {held.cpu_s * 1e3:.0f} ms of CPU ({held.wall_s * 1e3:.0f} ms) in {held.turns} turns{collected}"
