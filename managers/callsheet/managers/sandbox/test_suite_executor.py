"""Runs rewards that are commands, each in a fresh sandbox; and what uses of sandboxes by attempts have in common."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import monotonic

import anyio
import structlog
from callsheet.managers.ends import infra_failure
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Executor, Stopped
from callsheet.managers.sandbox.backend import Sandbox, SandboxBackend, SandboxLostError, SandboxSpec, StoppedError
from callsheet.managers.sandbox.command_defaults import CommandDefaults
from callsheet.managers.sandbox.images.store import ImageError
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.node_sharing import Command
from callsheet.managers.sandbox.requests import sandbox_spec
from callsheet.managers.sandbox.results import FORESEEN, command_result, describe_error, limit_failure, usage_of
from callsheet.managers.sandbox.scoring import Score
from callsheet.managers.sandbox.script_score import Script, ScriptRun, read_script
from callsheet.managers.sandbox.settings import CoreSharing, SandboxSettings
from callsheet.managers.sandbox.shared_cores import SharedClock, SharedCores
from callsheet.managers.sandbox.stopping import unless_stopped
from callsheet.managers.sandbox.test_suite import Suite, SuiteRun, read_suite
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2
from callsheet.v1.rewards import CommandScorer, command_scorer, scores_in_sandbox
from typing_extensions import override

HostedService = manager_service_pb2.HostedService

TEST_SUITE_SERVICE = "test-suite"

_PAUSE_SECONDS = 5.0
# How often sandboxes in use are looked at for forks that escaped a change.
_FOLLOW_S = 1.0
# Commands wait for disks and sockets as well: of each core they are granted they use about this much.
_USUAL_USE = 0.8

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Running:
    """An attempt that runs; `sandbox` is where, while it uses one. `clock` is set where cores are shared.

    `resized` says that its grant is another than the first: where cores are shared, it is confined from then on.
    """

    sandbox: Sandbox | None = None
    paused: bool = False
    resized: bool = False
    clock: SharedClock | None = None


class TestSuiteExecutor(Executor):
    """Runs test suites and scripts in fresh sandboxes that are destroyed afterwards; holds no state between attempts.

    Attributes:
        shared_cores: What shares the cores among sandboxes; None where each attempt has cores of its own.
    """

    __test__ = False

    def __init__(self, backend: SandboxBackend, settings: SandboxSettings, directory: ManagerDirectory) -> None:
        """Use `build.build_test_suite_executor`. This object closes the backend and the directory."""
        self._backend = backend
        self._settings = settings
        self._directory = directory
        self._running: dict[int, Running] = {}
        self._lost: list[Sandbox] = []
        sharing = settings.core_sharing is not CoreSharing.RESERVED
        self.shared_cores = SharedCores(settings.cores, settings.node_sharing) if sharing else None

    @override
    def services(self) -> Sequence[HostedService]:
        """Test-suite rewards."""
        return [self._service(TEST_SUITE_SERVICE, [action_pb2.ACTION_KIND_REWARD])]

    @override
    def capabilities(self) -> Mapping[str, str]:
        """What the backend isolates and limits, and how cores are shared."""
        return {**self._backend.capabilities(), "core_sharing": self._settings.core_sharing.value}

    @override
    def use_shared_cores(self, cores: Sequence[int]) -> None:
        """Takes the cores of its pool, where cores are shared."""
        if self.shared_cores is not None and cores:
            self.shared_cores.use(frozenset(cores))

    @override
    async def serve(self) -> None:
        """Does what sandboxes need while they are used, and ranks commands where cores are shared."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._backend.serve)
            tasks.start_soon(self._follow)
            if self.shared_cores is not None:
                await self.shared_cores.serve()

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Runs one attempt."""
        running = self._running[id(attempt)] = Running()
        if self.shared_cores is not None:
            attempt.execution_clock = running.clock = SharedClock(monotonic())
        log = _log.bind(
            job=attempt.action.job_id,
            trajectory=attempt.action.trajectory_id,
            action=attempt.action.action_id,
            attempt=attempt.grant.attempt,
        )
        try:
            await self._bury_lost()
            unknown = frozenset(attempt.grant.cores) - self._settings.cores
            if unknown:
                return Broken(infra_failure("cores_unavailable", f"cores {sorted(unknown)} are not this manager's"))
            return await self._run(attempt, running)
        except StoppedError:
            return Stopped()
        except FORESEEN as error:
            if isinstance(error, SandboxLostError):
                self._note_loss(attempt, str(error))
                await self._bury_lost()
                if attempt.stop_requested.is_set():
                    return Stopped()
            failed = describe_error(error, attempt.action)
            log.info("attempt_failed", reason=failed.reason, message=failed.message)
            return Broken(failed)
        finally:
            del self._running[id(attempt)]

    @override
    async def resize(self, attempt: Attempt) -> None:
        """Puts the attempt's sandbox on the cores that the grant now names, or on as many of the shared ones."""
        running = self._running.get(id(attempt))
        if running is None:
            return
        running.resized = True
        if running.sandbox is not None:
            try:
                if self.shared_cores is not None:
                    await self._resize_shared(attempt, self.shared_cores)
                else:
                    await running.sandbox.grant(self._cores_of(attempt))
            except SandboxLostError:
                _log.debug("resize_after_loss", action=attempt.action.action_id)

    @override
    async def pause(self, attempt: Attempt) -> None:
        """Freezes the attempt's sandbox."""
        await self._set_paused(attempt, True)

    @override
    async def resume(self, attempt: Attempt) -> None:
        """Thaws it."""
        await self._set_paused(attempt, False)

    @override
    async def close(self) -> None:
        """Ends the backend."""
        await self._bury_lost()
        await self._backend.close()
        self._directory.release()

    def _service(self, name: str, kinds: Sequence[action_pb2.ActionKind.ValueType]) -> HostedService:
        count = self._settings.shared_cores or len(self._settings.cores)
        shared = {"cpu": count} if self.shared_cores is not None else {}
        return HostedService(name=name, kinds=kinds, shared=shared)

    def _cores_of(self, attempt: Attempt) -> frozenset[int]:
        """Returns the cores of a grant; one that names none may use all that are shared, or all of the manager's."""
        return frozenset(attempt.grant.cores) or self._usual_cores()

    def _usual_cores(self) -> frozenset[int]:
        return self.shared_cores.cores if self.shared_cores is not None else self._settings.cores

    def _spec(self, attempt: Attempt) -> SandboxSpec:
        return sandbox_spec(uuid.uuid4().hex, attempt, self._cores_of(attempt), self._settings)

    async def _run(self, attempt: Attempt, running: Running) -> AttemptResult:
        scorer = command_scorer(attempt.action.reward)
        if scorer is not None and not scores_in_sandbox(attempt.action.reward):
            return await self._score_fresh(scorer, attempt, running)
        return Broken(infra_failure("unsupported_action", "this manager runs no such action"))

    async def _score_fresh(self, scorer: CommandScorer, attempt: Attempt, running: Running) -> AttemptResult:
        """Scores in a new sandbox, which is destroyed afterwards."""
        runnable = await read_scorer(scorer, attempt, self._settings, CommandDefaults())
        sandbox = await self._make_fresh(scorer.image, attempt, running)
        try:
            async with self._using(sandbox, attempt, running):
                run = await runnable.run(sandbox, units_of(attempt), attempt.stop_requested)
        finally:
            await sandbox.destroy()
        return await score_result(run, attempt)

    async def _make_fresh(self, image: str, attempt: Attempt, running: Running) -> Sandbox:
        """Makes the sandbox of one reward. Images are the sandbox manager's."""
        del running
        if image:
            raise ImageError(f"image {image[:200]!r}: this manager makes no sandboxes with images")
        return await self._create(self._spec(attempt), attempt)

    async def _create(self, spec: SandboxSpec, attempt: Attempt) -> Sandbox:
        """Makes a sandbox, or raises StoppedError once the attempt is to stop."""

        async def create() -> Sandbox:
            return await self._backend.create(spec, lambda reason: self._on_lost(spec.sandbox_id, reason))

        return await unless_stopped(attempt.stop_requested, create, lambda late: late.destroy())

    async def _follow(self) -> None:
        """Finds what escaped changes of lane and cores, for ever."""
        while True:
            await anyio.sleep(_FOLLOW_S)
            for sandbox in [running.sandbox for running in self._running.values() if running.sandbox is not None]:
                try:
                    await sandbox.follow()
                except (SandboxLostError, OSError) as error:
                    _log.debug("not_followed", sandbox=sandbox.spec.sandbox_id, reason=str(error))

    @asynccontextmanager
    async def _using(self, sandbox: Sandbox, attempt: Attempt, running: Running) -> AsyncIterator[None]:
        """Gives a sandbox the attempt's cores and lets it run for a while; outside of it, it is frozen."""
        running.sandbox = sandbox
        # Others may be shared once the sandbox has been put on these.
        among = self._usual_cores()
        try:
            async with self._sharing(sandbox, attempt, running, among):
                if running.paused:
                    # One that was just made runs.
                    await sandbox.pause()
                    await sandbox.grant(self._cores_of(attempt))
                else:
                    await sandbox.resume(self._cores_of(attempt))
                if running.resized and self.shared_cores is not None:
                    # It was before the command took part.
                    await self._resize_shared(attempt, self.shared_cores)
                yield
        finally:
            running.sandbox = None
            if sandbox.loss is None:
                with anyio.move_on_after(_PAUSE_SECONDS, shield=True):
                    await self._freeze(sandbox)

    @asynccontextmanager
    async def _sharing(
        self, sandbox: Sandbox, attempt: Attempt, running: Running, among: frozenset[int]
    ) -> AsyncIterator[None]:
        """Lets the attempt's commands share cores, where they are shared."""
        if self.shared_cores is None or running.clock is None:
            yield
            return
        ranked = self._settings.core_sharing is CoreSharing.RANKED
        reward = attempt.action.WhichOneof("payload") == "reward"
        command = Command(
            id(attempt), predicted_use(attempt), demotable=ranked and (not reward or self._settings.demote_rewards)
        )
        async with self.shared_cores.taking_part(command, sandbox, running.clock, among):
            if running.paused:
                self.shared_cores.pause(id(attempt))
            yield

    async def _resize_shared(self, attempt: Attempt, shared_cores: SharedCores) -> None:
        await shared_cores.resize(id(attempt), units_of(attempt), predicted_use(attempt))

    async def _freeze(self, sandbox: Sandbox) -> None:
        try:
            await sandbox.pause()
        except SandboxLostError as error:
            _log.info("lost_while_freezing", sandbox=sandbox.spec.sandbox_id, reason=str(error))

    async def _set_paused(self, attempt: Attempt, paused: bool) -> None:
        running = self._running.get(id(attempt))
        if running is None:
            return
        running.paused = paused
        if paused:
            self._stop_clock(attempt, running)
        if running.sandbox is not None:
            try:
                await (running.sandbox.pause() if paused else running.sandbox.resume())
            except SandboxLostError:
                _log.debug("pause_after_loss", action=attempt.action.action_id)
        if not paused:
            self._start_clock(attempt, running)

    def _stop_clock(self, attempt: Attempt, running: Running) -> None:
        if self.shared_cores is not None and running.clock is not None:
            running.clock.pause(monotonic())
            self.shared_cores.pause(id(attempt))

    def _start_clock(self, attempt: Attempt, running: Running) -> None:
        if self.shared_cores is not None and running.clock is not None:
            running.clock.resume(monotonic())
            self.shared_cores.resume(id(attempt))

    def _on_lost(self, sandbox_id: str, reason: str) -> None:
        """Called by the backend when a sandbox ends by itself."""
        _log.warning("sandbox_lost", sandbox=sandbox_id, reason=reason)

    def _note_loss(self, attempt: Attempt, reason: str) -> None:
        """Called when an attempt found its sandbox gone."""
        _log.warning("sandbox_lost", sandbox=attempt.grant.sandbox_id, reason=reason)

    async def _bury_lost(self) -> None:
        """Removes what lost sandboxes left; their processes are gone already."""
        while self._lost:
            await self._lost.pop().destroy()


async def read_scorer(
    scorer: CommandScorer, attempt: Attempt, settings: SandboxSettings, defaults: CommandDefaults
) -> Suite | Script:
    """Returns what a reward runs; raises what `read_files` and `read_command` raise."""
    if isinstance(scorer, action_pb2.TestSuiteInput):
        return await read_suite(scorer, attempt.payloads, settings, defaults)
    return await read_script(scorer, attempt.payloads, settings, defaults)


def units_of(attempt: Attempt) -> int:
    """Returns the cores that an attempt was granted, at least 1."""
    return len(attempt.grant.cores) or max(1, attempt.grant.resources.get("cpu", 1))


def predicted_use(attempt: Attempt) -> float:
    """Returns the cores that an attempt's commands will use: as the scheduler predicts, else a usual part."""
    units = units_of(attempt)
    return min(attempt.grant.expected_use, float(units)) or _USUAL_USE * units


async def score_result(run: SuiteRun | ScriptRun, attempt: Attempt) -> AttemptResult:
    """Returns what the run of a scorer means for its attempt."""
    outcome, usage = run.outcome, usage_of(run.outcome)
    reward = outcome_pb2.RewardResult(command=await command_result(outcome, attempt.payloads))
    partial = outcome_pb2.Succeeded(reward=reward)
    if outcome.stopped:
        return Stopped(partial, usage)
    judged = limit_failure(outcome, partial) or run.judge()
    if isinstance(judged, Score):
        reward.score, reward.passed, reward.total = judged.score, judged.passed, judged.total
        reward.components.update(judged.components)
        return Completed(outcome_pb2.Succeeded(reward=reward), usage)
    judged.partial.CopyFrom(partial)
    return Broken(judged, usage)
