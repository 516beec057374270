"""Runs env_reset, env_step and test-suite rewards in sandboxes: one persistent sandbox for each trajectory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.clock import after_waiting
from callsheet.managers.ends import infra_failure
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, PayloadError, Stopped
from callsheet.managers.sandbox.agent_client.command_defaults import CommandDefaults, over_image, read_defaults
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, FileSpec, SandboxSpec
from callsheet.managers.sandbox.commands.env_step import read_env_step, run_env_step
from callsheet.managers.sandbox.commands.requests import read_command, read_files
from callsheet.managers.sandbox.commands.results import command_result, limit_failure, usage_of
from callsheet.managers.sandbox.errors import (
    CopyDiedError,
    CopyLostError,
    SandboxCreateError,
    SandboxDiedError,
    SandboxError,
    SandboxLostError,
    StoppedError,
)
from callsheet.managers.sandbox.executor.base_executor import BaseSandboxExecutor
from callsheet.managers.sandbox.files.images.builds import read_build
from callsheet.managers.sandbox.files.images.shared_work import work_for
from callsheet.managers.sandbox.files.images.source import PreparedImage
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.provisioning.admitting_backend import AdmittingBackend
from callsheet.managers.sandbox.provisioning.provisioner import Provided, Provisioner, SetUpEndedError, Wanted
from callsheet.managers.sandbox.provisioning.sandbox_copies import SandboxCopies
from callsheet.managers.sandbox.provisioning.snapshots import SetUp
from callsheet.managers.sandbox.rewards.reference_runs import RunAfterReset, RunsAfterReset, reference_key, reference_of
from callsheet.managers.sandbox.rewards.rewards import (
    TEST_SUITE_SERVICE,
    comes_again,
    read_scorer,
    reference_limit_s,
    run_in_new_sandbox,
    run_in_own_sandbox,
    score_in_new_sandbox,
    score_result,
)
from callsheet.managers.sandbox.rewards.runner_ends import killed_by
from callsheet.managers.sandbox.rewards.script_score import Script, ScriptRun
from callsheet.managers.sandbox.rewards.test_suite import Suite, SuiteRun
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.sandbox.sharing.sandbox_use import SandboxUse
from callsheet.managers.sandbox.stopping import unless_stopped
from callsheet.managers.sandbox_memory import runs_in_sandbox
from callsheet.timing.waits import Cause
from callsheet.v1 import action_pb2, manager_service_pb2, outcome_pb2
from callsheet.v1.names import ANY_IMAGE_SERVICE, BUILD_SERVICE, IMAGE_SERVICE_PREFIX
from callsheet.v1.rewards import CommandScorer, command_scorer, scores_in_sandbox
from callsheet.v1.set_ups import set_up_name
from typing_extensions import override

BUILT_IMAGE = "@build"
"""In the place of the name of an image that is built. No image has it."""

SANDBOX_SERVICE = "sandbox"
# More than the creation and the set-up of a sandbox take for a run on the state after reset.
_MAKE_S = 600.0


async def completed_reset(provided: Provided, image: PreparedImage, attempt: Attempt) -> Completed:
    """Returns the result of a reset that made a sandbox; raises PayloadError if its output cannot be stored."""
    result = outcome_pb2.EnvResetResult(
        sandbox_id=provided.sandbox.spec.sandbox_id,
        trajectory_id=attempt.action.trajectory_id,
        set_up_reused=provided.reused,
        image_digest=image.registry_digest,
    )
    if provided.outcome is not None:
        result.set_up.CopyFrom(await command_result(provided.outcome, attempt.payloads))
    # What an earlier run used was charged to that one.
    usage = usage_of(provided.outcome) if provided.outcome is not None and not provided.reused else outcome_pb2.Usage()
    return Completed(outcome_pb2.Succeeded(env_reset=result), usage)


async def failed_reset(outcome: CommandOutcome, attempt: Attempt) -> AttemptResult:
    """Returns the result of a reset whose set-up command did not succeed."""
    result = outcome_pb2.EnvResetResult(trajectory_id=attempt.action.trajectory_id)
    result.set_up.CopyFrom(await command_result(outcome, attempt.payloads))
    partial, usage = outcome_pb2.Succeeded(env_reset=result), usage_of(outcome)
    if outcome.stopped:
        return Stopped(partial, usage)
    failed = limit_failure(outcome, partial) or outcome_pb2.Failed(
        kind=outcome_pb2.FAILURE_KIND_ENV,
        reason="set_up_failed",
        message=f"the set-up command ended with {outcome.end}",
        partial=partial,
    )
    return Broken(failed, usage)


_log = structlog.get_logger(__name__)

LossReport = Callable[[manager_service_pb2.SandboxState, str], None]


@dataclass(slots=True)
class _Held:
    """A trajectory's sandbox. `turn` keeps its actions apart, should two ever come at once.

    Attributes:
        reset: What it was asked for by.
        image: What it began with; its files stay as long as the sandbox lives.
        starved: Whether its set-up met a limit of it, and went on.
        snapshot: See `Provided.snapshot`.
    """

    state: manager_service_pb2.SandboxState
    sandbox: AgentSandbox
    defaults: CommandDefaults
    reset: action_pb2.EnvResetInput
    image: PreparedImage
    starved: bool
    snapshot: Path | None = None
    # A turn that is free is no wait.
    turn: anyio.Lock = field(default_factory=lambda: anyio.Lock(fast_acquire=True))


class SandboxExecutor(BaseSandboxExecutor):
    """Holds the sandboxes of trajectories: env_reset makes one, env_step and rewards may use it.

    Attributes:
        provisioner: Where the sandboxes come from.
    """

    def __init__(
        self,
        backend: AdmittingBackend,
        settings: SandboxSettings,
        directory: ManagerDirectory,
        provisioner: Provisioner,
    ) -> None:
        """Use `build.build_sandbox_executor`."""
        super().__init__(backend, settings, directory)
        self.provisioner = provisioner
        provisioner.on_lost(self.lost)
        self._held: dict[tuple[str, str], _Held] = {}
        self._report_loss: LossReport | None = None
        self._references = RunsAfterReset()
        self._copies = SandboxCopies(provisioner, directory.path, settings)

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        """Sandboxes, those with each image, and test-suite rewards inside and outside of them."""
        described = []
        for state in self.service_states():
            # Steps need no image any more, as their sandbox has it; rewards in new sandboxes may ask for one.
            is_plain = state.name == SANDBOX_SERVICE
            other = action_pb2.ACTION_KIND_ENV_STEP if is_plain else action_pb2.ACTION_KIND_REWARD
            others = [] if state.name == BUILD_SERVICE else [other]
            service = self._service(state.name, [action_pb2.ACTION_KIND_ENV_RESET, *others])
            service.setup_s, service.instances = state.setup_s, state.instances
            service.kept_set_ups.update(state.kept_set_ups)
            described.append(service)
        tests = self._service(TEST_SUITE_SERVICE, [action_pb2.ACTION_KIND_REWARD])
        tests.copies_sandboxes = True
        return [*described, tests]

    @override
    def service_states(self) -> Sequence[manager_service_pb2.ServiceState]:
        """Reports the costs of beginning a sandbox without and with each image, and the set-ups kept for it."""
        images = self.provisioner.images
        plain = self._state(SANDBOX_SERVICE)
        states = {"": plain}
        for name, setup_s in (images.setups_s() if images is not None else {}).items():
            # Once an image is there, as many sandboxes can begin with it as are made at a time.
            at_once = 0 if setup_s else self._settings.provisioning.most_creations
            service = f"{IMAGE_SERVICE_PREFIX}{name}"
            states[name] = manager_service_pb2.ServiceState(name=service, setup_s=setup_s, instances=at_once)
        others = plain
        if images is not None and images.takes_any_name:
            others = states["*"] = manager_service_pb2.ServiceState(name=ANY_IMAGE_SERVICE)
        if self.provisioner.builds is not None:
            states[BUILT_IMAGE] = manager_service_pb2.ServiceState(name=BUILD_SERVICE)
        for kept in self.provisioner.kept_set_ups.told():
            # An image that was put into the store later has no service of its own, nor has one of a registry.
            states.get(kept.image, others).kept_set_ups[kept.name] = kept.took_s
        return list(states.values())

    @override
    def on_service_change(self, report: Callable[[], None]) -> None:
        """Takes the function to call when an image has become ready, or is so no more, and likewise a set-up."""
        self.provisioner.kept_set_ups.on_change(report)
        if self.provisioner.images is not None:
            self.provisioner.images.on_change(report)

    @override
    async def serve(self) -> None:
        """Keeps sandboxes ready, and ranks commands where cores are shared."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self.provisioner.pool.serve)
            await super().serve()

    @override
    def sandboxes(self) -> Sequence[manager_service_pb2.SandboxState]:
        """The sandboxes that live, with what they hold."""
        for held in self._held.values():
            held.state.held_mib = self.memory.ledger.held_mib(held.state.sandbox_id)
        return [held.state for held in self._held.values()]

    def find_sandbox(self, state: manager_service_pb2.SandboxState) -> AgentSandbox | None:
        """Returns a sandbox that lives."""
        held = self._held.get((state.job_id, state.trajectory_id))
        return held.sandbox if held is not None and held.state.sandbox_id == state.sandbox_id else None

    @override
    def on_sandbox_lost(self, report: LossReport) -> None:
        """Takes the function that is told of sandboxes that end by themselves."""
        self._report_loss = report

    @override
    async def release_sandbox(self, sandbox: manager_service_pb2.SandboxState) -> None:
        """Destroys a sandbox, whatever runs in it."""
        found = self.find_sandbox(sandbox)
        if found is not None:
            del self._held[sandbox.job_id, sandbox.trajectory_id]
            await found.destroy()

    @override
    async def close(self) -> None:
        """Destroys all sandboxes and ends the backend."""
        async with anyio.create_task_group() as tasks:
            for held in self._held.values():
                tasks.start_soon(held.sandbox.destroy)
        self._held.clear()
        await self.provisioner.pool.close()
        await super().close()

    @override
    async def run(self, attempt: Attempt) -> AttemptResult:
        """Runs an attempt, and notes what its trajectory's sandbox holds before and after it."""
        ledger, trajectory = self.memory.ledger, (attempt.action.job_id, attempt.action.trajectory_id)
        held = self._held.get(trajectory)
        if held is not None and runs_in_sandbox(attempt.action):
            attempt.rest_mib = ledger.held_mib(held.state.sandbox_id)
            attempt.thawed_mib = held.sandbox.spec.memory_mib - attempt.rest_mib if attempt.rest_mib else 0
        result = await super().run(attempt)
        held = self._held.get(trajectory)
        if held is not None:
            attempt.sandbox_held_mib = ledger.held_mib(held.state.sandbox_id)
        return result

    @override
    async def _work(self, use: SandboxUse) -> AttemptResult:
        action = use.attempt.action
        work_for(action.job_id)
        kind = action.WhichOneof("payload")
        if kind == "env_reset":
            return await self._reset(use)
        if kind == "env_step":
            return await self._step(use)
        scorer = command_scorer(action.reward)
        if scorer is None:
            return Broken(infra_failure("unsupported_action", "this manager runs no such action"))
        if scores_in_sandbox(action.reward):
            return await self._score_in_sandbox(scorer, use)
        if use.attempt.grant.sandbox_id:
            return await self._score_in_copy(scorer, use)
        if not scorer.image:
            runnable = await self._read_scorer(scorer, use, CommandDefaults())
            return await score_in_new_sandbox(runnable, use, partial(self._create, use))
        async with after_waiting(Cause.IMAGE, self.provisioner.image(scorer.image, use.stop)) as image:
            defaults = over_image(CommandDefaults(), image.config)
            runnable = await self._read_scorer(scorer, use, defaults)
            return await score_in_new_sandbox(runnable, use, partial(self._make_fresh, image, use))

    async def _reset(self, use: SandboxUse) -> AttemptResult:
        attempt, action = use.attempt, use.attempt.action
        former = self._held.pop((action.job_id, action.trajectory_id), None)
        if former is not None:
            await former.sandbox.destroy()
        # What breaks a rule is refused before an image is pulled for it.
        spec, asked = use.new_sandbox(), read_defaults(action.env_reset, self._settings.isolation)
        async with after_waiting(Cause.IMAGE, self._image(use)) as image:
            defaults = over_image(asked, image.config)
            wanted = await self._read_reset(action.env_reset, use, spec, image, defaults)
            try:
                provided = await self.provisioner.provide(wanted, use)
            except SetUpEndedError as error:
                return await failed_reset(error.outcome, attempt)
        sandbox = provided.sandbox
        try:
            await self.memory.rest(sandbox)
            result = await completed_reset(provided, image, attempt)
            if sandbox.loss is not None:
                raise SandboxLostError(sandbox.loss)
        except BaseException:
            await sandbox.destroy()
            raise
        state = manager_service_pb2.SandboxState(
            job_id=action.job_id, trajectory_id=action.trajectory_id, sandbox_id=sandbox.spec.sandbox_id
        )
        self._held[action.job_id, action.trajectory_id] = _Held(
            state, sandbox, defaults, action.env_reset, image, provided.is_starved, provided.snapshot
        )
        return result

    @asynccontextmanager
    async def _image(self, use: SandboxUse) -> AsyncIterator[PreparedImage]:
        """Gives the image that a reset asks for, or brings along as a Dockerfile."""
        reset, builds = use.attempt.action.env_reset, self._settings.provisioning.builds
        if reset.HasField("build"):
            dockerfile = await read_build(reset.build, use.attempt.payloads, builds)
            async with self.provisioner.built_image(dockerfile, use.stop) as image:
                yield image
        else:
            async with self.provisioner.image(reset.image, use.stop) as image:
                yield image

    async def _step(self, use: SandboxUse) -> AttemptResult:
        attempt = use.attempt
        held = self._find(attempt)
        request = await read_env_step(attempt, self._settings, held.defaults)
        async with after_waiting(Cause.SANDBOX, held.turn), use.inside(held.sandbox):
            outcome, downloads = await run_env_step(held.sandbox, request, attempt, self._settings)
        result = outcome_pb2.Succeeded(env_step=await command_result(outcome, attempt.payloads, downloads))
        if outcome.stopped:
            return Stopped(result, usage_of(outcome))
        failed = limit_failure(outcome, result)
        return Broken(failed, usage_of(outcome)) if failed is not None else Completed(result, usage_of(outcome))

    async def _score_in_sandbox(self, scorer: CommandScorer, use: SandboxUse) -> AttemptResult:
        held = self._find(use.attempt)
        runnable = await self._read_scorer(scorer, use, held.defaults)
        async with after_waiting(Cause.SANDBOX, held.turn), use.inside(held.sandbox):
            run, hint = await use.in_time(partial(run_in_own_sandbox, scorer, runnable, held.sandbox, use))
        killed = False
        if killed_by(run.outcome) and not run.outcome.stopped and scorer.background != action_pb2.REWARD_BACKGROUND_RUN:
            # What the policy's code does it does again in a copy.
            killed = not killed_by((await self._run_in_copy(runnable, held, use)).outcome)
        look = partial(self._look, held, scorer, use)
        return await score_result(run, use.attempt, hint, look=look, try_again=killed)

    async def _score_in_copy(self, scorer: CommandScorer, use: SandboxUse) -> AttemptResult:
        held = self._find(use.attempt)
        runnable = await self._read_scorer(scorer, use, held.defaults)
        run = await use.in_time(partial(self._run_in_copy, runnable, held, use))
        look = partial(self._look, held, scorer, use)
        return await score_result(run, use.attempt, look=look, try_again=comes_again(use.attempt))

    async def _run_in_copy(self, runnable: Suite | Script, held: _Held, use: SandboxUse) -> SuiteRun | ScriptRun:
        async with self._copies.place() as place:
            async with after_waiting(Cause.SANDBOX, held.turn):
                await self._copies.take(held.sandbox, place, use)
            make = partial(self._copies.make, held.sandbox, held.snapshot, place, use)
            try:
                return await run_in_new_sandbox(runnable, use, make)
            except SandboxLostError as error:
                if use.stop.is_set():
                    raise StoppedError from error
                # Not the trajectory's own, which lives as long as nobody says otherwise.
                reason = "copy_lost" if error.reason == SandboxLostError.reason else error.reason
                died = isinstance(error, SandboxDiedError)
                raise (CopyDiedError if died else CopyLostError)(reason, str(error)) from error

    async def _read_scorer(self, scorer: CommandScorer, use: SandboxUse, defaults: CommandDefaults) -> Suite | Script:
        return await read_scorer(scorer, use.attempt.payloads, self._settings, defaults)

    async def _read_reset(
        self,
        reset: action_pb2.EnvResetInput,
        use: SandboxUse,
        spec: SandboxSpec,
        image: PreparedImage,
        defaults: CommandDefaults,
    ) -> Wanted:
        """Returns what an env_reset asks for; raises what the readers of `requests` raise."""
        payloads = use.attempt.payloads
        files = await read_files(reset.files, payloads, defaults)
        # An image has its own, if it names one.
        if reset.defaults.working_directory:
            files.insert(0, FileSpec(defaults.directory, directory=True))
        command = None
        if reset.HasField("set_up"):
            command = await read_command(reset.set_up, payloads, self._settings, defaults)
        set_up = SetUp(tuple(files), command)
        name = BUILT_IMAGE if reset.HasField("build") else reset.image
        return Wanted(spec, image, name, set_up, set_up_name(reset), reset.repeat_set_up, reset.defaults.user)

    async def _look(self, held: _Held, scorer: CommandScorer, use: SandboxUse) -> RunAfterReset:
        """Returns the result of the same run on the state after reset, or why there is none."""
        key = reference_key(held.image.digest, held.reset, scorer)
        spec = self._copies.sized(use, held.sandbox.spec)
        # The state was made within the sizes of the one, and the run within those of the other.
        sizes = (*held.sandbox.spec.sizes, *spec.sizes)
        if held.starved and spec.sizes != held.sandbox.spec.sizes:
            return RunAfterReset(missing="its set-up met a limit of the sandbox, and the reward has others")
        try:
            with use.off_the_clock():
                look = partial(self._run_again, held, scorer, use, spec)
                # Siblings that have the same time share what it is not enough for.
                group = (use.attempt.action.job_id, reference_limit_s(use.attempt))
                return await unless_stopped(use.stop, lambda: self._references.of(key, sizes, group, look))
        except (SandboxError, SetUpEndedError, PayloadError) as error:
            # The policy has no part in this, and its own sandbox lives.
            _log.warning("not_seen_after_reset", action=use.attempt.action.action_id, reason=str(error))
            kind = getattr(error, "kind", outcome_pb2.FAILURE_KIND_ENV)
            return RunAfterReset(missing=f"it failed: {error}", kind=kind)

    async def _run_again(self, held: _Held, scorer: CommandScorer, use: SandboxUse, spec: SandboxSpec) -> RunAfterReset:
        runnable, limit_s = await self._read_scorer(scorer, use, held.defaults), reference_limit_s(use.attempt)

        async def make() -> AgentSandbox:
            with anyio.move_on_after(max(limit_s, _MAKE_S)):
                root = held.sandbox.spec.root
                kept = held.snapshot or root.snapshot
                if kept is not None:
                    return await self.provisioner.begin_with(replace(spec, root=root), kept, use.stop)
                wanted = await self._read_reset(held.reset, use, spec, held.image, held.defaults)
                return (await self.provisioner.provide(wanted, use)).sandbox
            raise SandboxCreateError("it was not ready in time")

        try:
            run = await run_in_new_sandbox(runnable, use, make, limit_s)
        except TimeoutError:
            message = f"it took more than {limit_s:g} s"
            return RunAfterReset(failure=message, missing=message, holds=False, cut=True)
        if run.outcome.stopped:
            raise StoppedError
        return await anyio.to_thread.run_sync(reference_of, run)

    async def _make_fresh(self, image: PreparedImage, use: SandboxUse) -> AgentSandbox:
        """Makes the sandbox of one reward."""
        return (await self.provisioner.provide(Wanted(use.new_sandbox(), image), use)).sandbox

    def _find(self, attempt: Attempt) -> _Held:
        held = self._held.get((attempt.action.job_id, attempt.action.trajectory_id))
        if held is None or held.state.sandbox_id != attempt.grant.sandbox_id:
            raise SandboxLostError(f"sandbox {attempt.grant.sandbox_id!r} is not here")
        return held

    @override
    def _forget(self, sandbox_id: str, reason: str) -> AgentSandbox | None:
        """Gives up a sandbox that was lost, and tells the scheduler so."""
        for place, held in self._held.items():
            if held.state.sandbox_id == sandbox_id:
                del self._held[place]
                if self._report_loss is not None:
                    self._report_loss(held.state, reason)
                return held.sandbox
        return None
