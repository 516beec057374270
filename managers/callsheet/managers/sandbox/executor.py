"""Runs env_reset, env_step and test-suite rewards in sandboxes: one persistent sandbox for each trajectory."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import structlog
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Stopped
from callsheet.managers.sandbox.backend import (
    CommandOutcome,
    Sandbox,
    SandboxBackend,
    SandboxLostError,
    SandboxSpec,
    StoppedError,
)
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.requests import granted_cores, read_command, read_files, sandbox_spec
from callsheet.managers.sandbox.results import FORESEEN, command_result, describe_error, limit_failure, usage_of
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.sandbox.test_suite import Score, SuiteRun, judge, read_suite, run_suite
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2

SANDBOX_SERVICE = "sandbox"
TEST_SUITE_SERVICE = "test-suite"

_PAUSE_SECONDS = 5.0

_log = structlog.get_logger(__name__)

LossReport = Callable[[manager_service_pb2.SandboxState, str], None]


@dataclass(slots=True)
class _Held:
    """A trajectory's sandbox. `turn` keeps its actions apart, should two ever come at once."""

    state: manager_service_pb2.SandboxState
    sandbox: Sandbox
    turn: anyio.Lock = field(default_factory=anyio.Lock)


@dataclass(slots=True)
class _Running:
    """An attempt that runs; `sandbox` is where, while it uses one."""

    sandbox: Sandbox | None = None
    paused: bool = False


class TestSuiteExecutor:
    """Runs test-suite rewards in fresh sandboxes that are destroyed afterwards; holds no state between attempts."""

    __test__ = False

    def __init__(self, backend: SandboxBackend, settings: SandboxSettings, directory: ManagerDirectory) -> None:
        """Use `build.build_test_suite_executor`. This object closes the backend and the directory."""
        self._backend = backend
        self._settings = settings
        self._directory = directory
        self._running: dict[int, _Running] = {}
        self._lost: list[Sandbox] = []

    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """Test-suite rewards."""
        return [
            manager_service_pb2.HostedService(name=TEST_SUITE_SERVICE, kinds=[action_pb2.ACTION_KIND_REWARD]),
        ]

    def capabilities(self) -> Mapping[str, str]:
        """What the backend isolates and limits."""
        return self._backend.capabilities()

    def sandboxes(self) -> Sequence[manager_service_pb2.SandboxState]:
        """None that outlives its attempt."""
        return []

    async def run(self, attempt: Attempt) -> AttemptResult:
        """Runs one attempt."""
        running = self._running[id(attempt)] = _Running()
        log = _log.bind(
            job=attempt.action.job_id,
            trajectory=attempt.action.trajectory_id,
            action=attempt.action.action_id,
            attempt=attempt.grant.attempt,
        )
        try:
            await self._bury_lost()
            unknown = granted_cores(attempt, self._settings) - self._settings.cores
            if unknown:
                return _infra("cores_unavailable", f"cores {sorted(unknown)} are not this manager's")
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

    async def resize(self, attempt: Attempt) -> None:
        """Puts the attempt's sandbox on the cores that the grant now names."""
        running = self._running.get(id(attempt))
        if running is not None and running.sandbox is not None:
            try:
                await running.sandbox.grant(granted_cores(attempt, self._settings))
            except SandboxLostError:
                _log.debug("resize_after_loss", action=attempt.action.action_id)

    async def pause(self, attempt: Attempt) -> None:
        """Freezes the attempt's sandbox."""
        await self._set_paused(attempt, True)

    async def resume(self, attempt: Attempt) -> None:
        """Thaws it."""
        await self._set_paused(attempt, False)

    async def release_sandbox(self, sandbox: manager_service_pb2.SandboxState) -> None:
        """There is none to release."""
        del sandbox

    async def close(self) -> None:
        """Ends the backend."""
        await self._bury_lost()
        await self._backend.close()
        self._directory.release()

    async def _run(self, attempt: Attempt, running: _Running) -> AttemptResult:
        if _is_suite(attempt.action) and not attempt.action.reward.test_suite.in_sandbox:
            return await self._score_fresh(attempt, running)
        return _infra("unsupported_action", "this manager runs no such action")

    async def _score_fresh(self, attempt: Attempt, running: _Running) -> AttemptResult:
        suite = await read_suite(attempt.action.reward.test_suite, attempt.payloads, self._settings)
        sandbox = await self._create(sandbox_spec(uuid.uuid4().hex, attempt, self._settings), attempt)
        try:
            async with self._using(sandbox, attempt, running):
                run = await run_suite(sandbox, suite, _units(attempt), attempt.stop_requested)
        finally:
            await sandbox.destroy()
        return await _score_result(run, attempt)

    async def _create(self, spec: SandboxSpec, attempt: Attempt) -> Sandbox:
        """Makes a sandbox, or raises StoppedError once the attempt is to stop."""
        made: list[Sandbox] = []
        problem: list[Exception] = []

        async def create() -> None:
            try:
                made.append(await self._backend.create(spec, lambda reason: self._on_lost(spec.sandbox_id, reason)))
            except FORESEEN as error:
                problem.append(error)
            creation.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as creation:
                creation.start_soon(create)
                await attempt.stop_requested.wait()
                creation.cancel_scope.cancel()
        except BaseException:
            for sandbox in made:
                await sandbox.destroy()
            raise
        if problem:
            raise problem[0]
        if not made:
            raise StoppedError
        return made[0]

    @asynccontextmanager
    async def _using(self, sandbox: Sandbox, attempt: Attempt, running: _Running) -> AsyncIterator[None]:
        """Gives a sandbox the attempt's cores and lets it run for a while; outside of it, it is frozen."""
        running.sandbox = sandbox
        try:
            await sandbox.grant(granted_cores(attempt, self._settings))
            if not running.paused:
                await sandbox.resume()
            yield
        finally:
            running.sandbox = None
            if sandbox.loss is None:
                with anyio.move_on_after(_PAUSE_SECONDS, shield=True):
                    await self._freeze(sandbox)

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
        if running.sandbox is not None:
            try:
                await (running.sandbox.pause() if paused else running.sandbox.resume())
            except SandboxLostError:
                _log.debug("pause_after_loss", action=attempt.action.action_id)

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


class SandboxExecutor(TestSuiteExecutor):
    """Adds the sandboxes of trajectories: env_reset makes one, env_step and rewards may use it."""

    def __init__(self, backend: SandboxBackend, settings: SandboxSettings, directory: ManagerDirectory) -> None:
        """Use `build.build_sandbox_executor`."""
        super().__init__(backend, settings, directory)
        self._held: dict[tuple[str, str], _Held] = {}
        self._report_loss: LossReport | None = None

    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """Sandboxes, and test-suite rewards inside and outside of them."""
        kinds = [action_pb2.ACTION_KIND_ENV_RESET, action_pb2.ACTION_KIND_ENV_STEP]
        return [manager_service_pb2.HostedService(name=SANDBOX_SERVICE, kinds=kinds), *super().services()]

    def sandboxes(self) -> Sequence[manager_service_pb2.SandboxState]:
        """The sandboxes that live."""
        return [held.state for held in self._held.values()]

    def on_sandbox_lost(self, report: LossReport) -> None:
        """Takes the function that is told of sandboxes that end by themselves."""
        self._report_loss = report

    async def release_sandbox(self, sandbox: manager_service_pb2.SandboxState) -> None:
        """Destroys a sandbox, whatever runs in it."""
        held = self._held.get((sandbox.job_id, sandbox.trajectory_id))
        if held is not None and held.state.sandbox_id == sandbox.sandbox_id:
            del self._held[sandbox.job_id, sandbox.trajectory_id]
            await held.sandbox.destroy()

    async def close(self) -> None:
        """Destroys all sandboxes and ends the backend."""
        async with anyio.create_task_group() as tasks:
            for held in self._held.values():
                tasks.start_soon(held.sandbox.destroy)
        self._held.clear()
        await super().close()

    async def _run(self, attempt: Attempt, running: _Running) -> AttemptResult:
        kind = attempt.action.WhichOneof("payload")
        if kind == "env_reset":
            return await self._reset(attempt, running)
        if kind == "env_step":
            return await self._step(attempt, running)
        if _is_suite(attempt.action) and attempt.action.reward.test_suite.in_sandbox:
            return await self._score_in_sandbox(attempt, running)
        return await super()._run(attempt, running)

    async def _reset(self, attempt: Attempt, running: _Running) -> AttemptResult:
        action, reset = attempt.action, attempt.action.env_reset
        former = self._held.pop((action.job_id, action.trajectory_id), None)
        if former is not None:
            await former.sandbox.destroy()
        files = await read_files(reset.files, attempt.payloads)
        set_up = (
            await read_command(reset.set_up, attempt.payloads, self._settings) if reset.HasField("set_up") else None
        )
        sandbox = await self._create(sandbox_spec(uuid.uuid4().hex, attempt, self._settings), attempt)
        result: AttemptResult | None = None
        try:
            outcome: CommandOutcome | None = None
            async with self._using(sandbox, attempt, running):
                for file in files:
                    await sandbox.write_file(file, attempt.stop_requested)
                if set_up is not None:
                    outcome = await sandbox.execute(set_up, attempt.stop_requested)
            result = await self._reset_result(sandbox, outcome, attempt)
            if sandbox.loss is not None:
                raise SandboxLostError(sandbox.loss)
            return result
        finally:
            if isinstance(result, Completed) and sandbox.loss is None:
                state = manager_service_pb2.SandboxState(
                    job_id=action.job_id, trajectory_id=action.trajectory_id, sandbox_id=sandbox.spec.sandbox_id
                )
                self._held[action.job_id, action.trajectory_id] = _Held(state, sandbox)
            else:
                await sandbox.destroy()

    async def _reset_result(self, sandbox: Sandbox, outcome: CommandOutcome | None, attempt: Attempt) -> AttemptResult:
        made = outcome_pb2.EnvResetResult(
            sandbox_id=sandbox.spec.sandbox_id, trajectory_id=attempt.action.trajectory_id
        )
        if outcome is None:
            return Completed(outcome_pb2.Succeeded(env_reset=made))
        made.set_up.CopyFrom(await command_result(outcome, attempt.payloads))
        succeeded, usage = outcome_pb2.Succeeded(env_reset=made), usage_of(outcome)
        if not outcome.stopped and not outcome.failed:
            return Completed(succeeded, usage)
        made.sandbox_id = ""
        partial = outcome_pb2.Succeeded(env_reset=made)
        if outcome.stopped:
            return Stopped(partial, usage)
        ended = f"signal {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
        failed = limit_failure(outcome, partial) or outcome_pb2.Failed(
            kind=outcome_pb2.FAILURE_KIND_ENV,
            reason="set_up_failed",
            message=f"the set-up command ended with {ended}",
            partial=partial,
        )
        return Broken(failed, usage)

    async def _step(self, attempt: Attempt, running: _Running) -> AttemptResult:
        held, step = self._find(attempt), attempt.action.env_step
        files = await read_files(step.files, attempt.payloads)
        command = await read_command(step.command, attempt.payloads, self._settings)
        async with held.turn, self._using(held.sandbox, attempt, running):
            for file in files:
                await held.sandbox.write_file(file, attempt.stop_requested)
            outcome = await held.sandbox.execute(command, attempt.stop_requested)
        result = outcome_pb2.Succeeded(env_step=await command_result(outcome, attempt.payloads))
        if outcome.stopped:
            return Stopped(result, usage_of(outcome))
        failed = limit_failure(outcome, result)
        return Broken(failed, usage_of(outcome)) if failed is not None else Completed(result, usage_of(outcome))

    async def _score_in_sandbox(self, attempt: Attempt, running: _Running) -> AttemptResult:
        held = self._find(attempt)
        suite = await read_suite(attempt.action.reward.test_suite, attempt.payloads, self._settings)
        async with held.turn, self._using(held.sandbox, attempt, running):
            run = await run_suite(held.sandbox, suite, _units(attempt), attempt.stop_requested)
        return await _score_result(run, attempt)

    def _find(self, attempt: Attempt) -> _Held:
        held = self._held.get((attempt.action.job_id, attempt.action.trajectory_id))
        if held is None or held.state.sandbox_id != attempt.grant.sandbox_id:
            raise SandboxLostError(f"sandbox {attempt.grant.sandbox_id!r} is not here")
        return held

    def _on_lost(self, sandbox_id: str, reason: str) -> None:
        super()._on_lost(sandbox_id, reason)
        for place, held in self._held.items():
            if held.state.sandbox_id == sandbox_id:
                del self._held[place]
                self._lost.append(held.sandbox)
                if self._report_loss is not None:
                    self._report_loss(held.state, reason)
                return

    def _note_loss(self, attempt: Attempt, reason: str) -> None:
        if attempt.grant.sandbox_id:
            self._on_lost(attempt.grant.sandbox_id, reason)


def _is_suite(action: action_pb2.ActionSpec) -> bool:
    return action.WhichOneof("payload") == "reward" and action.reward.WhichOneof("scorer") == "test_suite"


def _units(attempt: Attempt) -> int:
    return len(attempt.grant.cores) or max(1, attempt.grant.resources.get("cpu", 1))


def _infra(reason: str, message: str) -> Broken:
    return Broken(outcome_pb2.Failed(kind=outcome_pb2.FAILURE_KIND_INFRA, reason=reason, message=message))


async def _score_result(run: SuiteRun, attempt: Attempt) -> AttemptResult:
    outcome, usage = run.outcome, usage_of(run.outcome)
    reward = outcome_pb2.RewardResult(command=await command_result(outcome, attempt.payloads))
    partial = outcome_pb2.Succeeded(reward=reward)
    if outcome.stopped:
        return Stopped(partial, usage)
    judged = limit_failure(outcome, partial) or judge(run)
    if isinstance(judged, Score):
        reward.score, reward.passed, reward.total = judged.score, judged.passed, judged.total
        return Completed(outcome_pb2.Succeeded(reward=reward), usage)
    judged.partial.CopyFrom(partial)
    return Broken(judged, usage)
