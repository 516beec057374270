"""One attempt's use of sandboxes: the cores it has there, and its clock."""

from __future__ import annotations

import math
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from time import monotonic
from typing import TypeVar

import anyio
import structlog
from callsheet.credentials.sandboxes import sandbox_source
from callsheet.managers.executor import Attempt
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.commands.requests import sandbox_spec
from callsheet.managers.sandbox.errors import SandboxLostError, StoppedError
from callsheet.managers.sandbox.node_sharing import KnownCommand
from callsheet.managers.sandbox.settings import CoreSharing, SandboxSettings
from callsheet.managers.sandbox.sharing.memory_gate import MemoryGate
from callsheet.managers.sandbox.sharing.shared_cores import SharedClock, SharedCores
from callsheet.timing.waits import Cause

_PAUSE_SECONDS = 5.0
# What is left of an attempt's time when `SandboxUse.in_time` stops what runs.
_LEFT_SECONDS, _LEFT_SHARE = 1.0, 0.1
# A clock that goes slower than time is looked at no more often.
_LOOK_SECONDS = 0.05
# Commands wait for disks and sockets as well: of each core they are granted they use about this much.
_USUAL_USE = 0.8

_log = structlog.get_logger(__name__)

_Result = TypeVar("_Result")


class SandboxUse:
    """An attempt that runs in sandboxes, one at a time.

    Attributes:
        attempt: The attempt.
        sandbox: Where it works now, if anywhere.
    """

    def __init__(
        self, attempt: Attempt, settings: SandboxSettings, shared_cores: SharedCores | None, memory: MemoryGate
    ) -> None:
        """Starts the attempt's clock. Without shared cores each attempt has cores of its own."""
        self.attempt = attempt
        self.sandbox: AgentSandbox | None = None
        self._settings = settings
        self._shared_cores = shared_cores
        self._memory = memory
        self._resized = False
        self._early_stop: anyio.Event | None = None
        attempt.execution_clock = self._clock = SharedClock(monotonic())
        attempt.waits.stand = self._stand

    @property
    def stop(self) -> anyio.Event:
        """Set when what runs is to end: with the attempt, or before it, see `in_time`."""
        return self._early_stop or self.attempt.stop_requested

    async def in_time(self, run: Callable[[], Awaitable[_Result]]) -> _Result:
        """Returns what a function returns, for which `stop` is set a little before the attempt's time is over.

        So there is an attempt left in which to find out why the time was not enough.

        Raises:
            Exception: What the function raised.
        """
        results: list[_Result] = []
        problems: list[Exception] = []
        self._early_stop = anyio.Event()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._watch_time, self._early_stop)
                try:
                    results.append(await run())
                except Exception as error:
                    problems.append(error)
                tasks.cancel_scope.cancel()
        finally:
            self._early_stop = None
        if not problems:
            return results[0]
        if isinstance(problems[0], StoppedError):
            await self.attempt.stop_requested.wait()
        raise problems[0]

    async def _watch_time(self, early_stop: anyio.Event) -> None:
        limit_s = self.attempt.grant.start_to_close.ToTimedelta().total_seconds() or math.inf
        enough_s, clock = limit_s - min(_LEFT_SECONDS, _LEFT_SHARE * limit_s), self._clock
        while not self.attempt.stop_requested.is_set() and (left_s := enough_s - clock(monotonic())) > 0:
            with anyio.move_on_after(max(left_s, _LOOK_SECONDS)):
                await self.attempt.stop_requested.wait()
        early_stop.set()

    @property
    def units(self) -> int:
        """The cores that the attempt was granted, at least 1."""
        grant = self.attempt.grant
        return len(grant.cores) or max(1, grant.resources.get("cpu", 1))

    def new_sandbox(self) -> SandboxSpec:
        """Returns what a new sandbox of the attempt is to be; raises what `sandbox_spec` raises."""
        return sandbox_spec(uuid.uuid4().hex, self.attempt, self._cores(), self._settings)

    @asynccontextmanager
    async def inside(self, sandbox: AgentSandbox) -> AsyncIterator[None]:
        """Gives a sandbox the attempt's cores and lets it run for a while; outside of it, it is frozen."""
        self.sandbox = sandbox
        sandbox.source = sandbox_source(self.attempt.action.job_id, self.attempt.action.trajectory_id)
        # Others may be shared once the sandbox has been put on these.
        among = self._usual_cores()
        try:
            await self._memory.thaw(sandbox.spec.sandbox_id, self.stop, self.attempt.grant.expected_execution_s)
            async with self._memory.files.some(self.stop), self._sharing(sandbox, among):
                await sandbox.resume(self._cores())
                if self._resized and self._shared_cores is not None:
                    # It was before the command took part.
                    await self._resize_shared(self._shared_cores)
                yield
        finally:
            self.sandbox = None
            await self._leave(sandbox)
            # Of background processes, too, and of runs that decide nothing but the verdict.
            self.attempt.cpu_s += sandbox.untold_cpu_s()

    async def _leave(self, sandbox: AgentSandbox) -> None:
        """Freezes a sandbox, which has no more of its memory then than it holds."""
        held_mib: int | None = None
        if sandbox.loss is None:
            with anyio.move_on_after(_PAUSE_SECONDS, shield=True):
                held_mib = await _freeze(sandbox)
        self._memory.leave(sandbox, held_mib)

    @contextmanager
    def off_the_clock(self) -> Iterator[None]:
        """Has the attempt wait for a run on the state after reset, which is not charged to its execution clock."""
        with self._stand(), self.attempt.waits.on(Cause.REFERENCE, counted=False):
            yield

    @contextmanager
    def _stand(self) -> Iterator[None]:
        """Stops the attempt's clock; what runs meanwhile has one that nobody reads."""
        clock, self._clock = self._clock, SharedClock(monotonic())
        clock.enter(monotonic(), lambda _: 0.0)
        try:
            yield
        finally:
            clock.leave(monotonic())
            self._clock = clock

    async def resize(self) -> None:
        """Puts the sandbox on the cores that the grant now names, or on as many of the shared ones."""
        self._resized = True
        if self.sandbox is not None:
            try:
                if self._shared_cores is not None:
                    await self._resize_shared(self._shared_cores)
                else:
                    await self.sandbox.grant(self._cores())
            except SandboxLostError:
                _log.debug("resize_after_loss", action=self.attempt.action.action_id)

    async def follow(self) -> None:
        """Finds what escaped changes of lane and cores."""
        sandbox = self.sandbox
        if sandbox is not None:
            try:
                await sandbox.follow()
            except (SandboxLostError, OSError) as error:
                _log.debug("not_followed", sandbox=sandbox.spec.sandbox_id, reason=str(error))

    def _cores(self) -> frozenset[int]:
        """Returns the cores of the grant; one that names none may use all that are shared, or all of the manager's."""
        return frozenset(self.attempt.grant.cores) or self._usual_cores()

    def _usual_cores(self) -> frozenset[int]:
        return self._shared_cores.cores if self._shared_cores is not None else self._settings.cores

    @asynccontextmanager
    async def _sharing(self, sandbox: AgentSandbox, among: frozenset[int]) -> AsyncIterator[None]:
        """Lets the attempt's commands share cores, where they are shared."""
        if self._shared_cores is None:
            yield
            return
        ranked = self._settings.core_sharing is CoreSharing.RANKED
        reward = self.attempt.action.WhichOneof("payload") == "reward"
        # A stall inside a test suite may trip its own timeouts, which makes the reward wrong.
        demotable = ranked and not reward
        command = KnownCommand(id(self.attempt), self._predicted_use(), demotable=demotable)
        async with self._shared_cores.taking_part(command, sandbox, self._clock, among):
            yield

    async def _resize_shared(self, shared_cores: SharedCores) -> None:
        await shared_cores.resize(id(self.attempt), self.units, self._predicted_use())

    def _predicted_use(self) -> float:
        """Returns the cores that the attempt's commands will use: as the scheduler predicts, else a usual part."""
        return min(self.attempt.grant.expected_use, float(self.units)) or _USUAL_USE * self.units


async def _freeze(sandbox: AgentSandbox) -> int | None:
    try:
        return await sandbox.pause()
    except SandboxLostError as error:
        _log.info("lost_while_freezing", sandbox=sandbox.spec.sandbox_id, reason=str(error))
        return None
