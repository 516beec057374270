"""The state of a fake client: jobs, trajectories, groups and actions in memory, by the rules of a real scheduler.

The outcome of an action is what a script makes.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import anyio
from callsheet.client.backend import ActionHandle, CancelTarget, Opened
from callsheet.client.codec.actions import encode_submission
from callsheet.client.codec.jobs import (
    encode_batch_request,
    encode_job,
    encode_publish,
    encode_result,
    encode_trajectory,
    encode_trajectory_end,
)
from callsheet.client.errors import RefusalCode, RefusedError, invalid, not_found, refused, unfit
from callsheet.client.step_summary import StepTallies, ended_by_outcome
from callsheet.client.testing.fake_buffer import FakeBuffer
from callsheet.client.words.actions import Action, EnvStep, Submission
from callsheet.client.words.arguments import instance, whole
from callsheet.client.words.jobs import BatchRequest
from callsheet.client.words.outcomes import Cancelled, Outcome
from callsheet.client.words.results import OutputChunk
from callsheet.client.words.weights import PublishedWeights
from callsheet.v1.buffer_values import BatchContent, FinishedResult
from callsheet.v1.client_service_values import Settlement
from callsheet.v1.common_values import OutputStream
from callsheet.v1.job_values import (
    GroupDescription,
    GroupStatus,
    JobDescription,
    JobStatus,
    OnInfra,
    Opening,
    TrajectoryDescription,
    TrajectoryEnd,
    TrajectoryStatus,
)
from callsheet.v1.outcome_values import CommandResult
from callsheet.v1.weights_values import EngineState, RolloutEngine, RolloutStatus, UpdateMode

T = TypeVar("T")


class FakeHandle(ActionHandle[T]):
    """An action of a `FakeClient`."""

    def __init__(
        self,
        submission: Submission[T],
        script: Callable[[Any], Any],
        cancelled: list[tuple[str, str, str]],
        steps: StepTallies,
    ) -> None:
        super().__init__(submission.job_id, submission.action_id)
        self._action: Action[T] = submission.action
        self._script = script
        self._cancelled = cancelled
        self._steps = steps
        self._ended: Outcome[T] | RefusedError | None = None
        self._running = anyio.Lock()
        self._script_scope = anyio.CancelScope()

    @property
    def done(self) -> bool:
        """Returns whether the outcome (or the refusal) is there."""
        return self._ended is not None

    async def accepted(self) -> None:
        """Returns at once."""

    async def outcome(self) -> Outcome[T]:
        """Runs the script, once."""
        async with self._running:
            if self._ended is None:
                await self._run()
        if isinstance(self._ended, RefusedError):
            raise self._ended
        assert self._ended is not None
        return self._ended

    async def output(self) -> AsyncIterator[OutputChunk]:
        """Yields the output of the script's result, each stream as one part, if the action asks for it."""
        result = getattr(await self.outcome(), "value", None)
        if isinstance(self._action, EnvStep) and self._action.stream_output and isinstance(result, CommandResult):
            for stream, content in ((OutputStream.STDOUT, result.stdout), (OutputStream.STDERR, result.stderr)):
                if content:
                    yield OutputChunk(stream, content)

    async def cancel(self, reason: str = "") -> None:
        """Makes the outcome Cancelled, unless the script has made one."""
        self.abandon(instance("reason", reason, str, "text"))

    def abandon(self, reason: str) -> None:
        """Like `cancel`."""
        if self._ended is None:
            self._cancelled.append((self.job_id, self.action_id, reason))
            self.end_as_cancelled(reason)

    def end_as_cancelled(self, reason: str) -> None:
        """Makes the outcome Cancelled, unless there is one."""
        if self._ended is None:
            self._end(Cancelled(reason, job_id=self.job_id, action_id=self.action_id))
            self._script_scope.cancel()

    async def _run(self) -> None:
        with self._script_scope:
            try:
                made = self._script(self._action)
                outcome = await made if inspect.isawaitable(made) else made
            except RefusedError as refusal:
                self._ended = refusal
            else:
                self._end(replace(outcome, job_id=self.job_id, action_id=self.action_id))

    def _end(self, outcome: Outcome[T]) -> None:
        self._ended = outcome
        self._steps.ended(self.job_id, ended_by_outcome(self._action.kind, outcome))


Key = tuple[str, str]


@dataclass(slots=True)
class _Trajectory:
    spec: TrajectoryDescription
    policy_version: int
    end: TrajectoryEnd | None = None
    reason: str = ""


@dataclass(slots=True)
class _Group:
    spec: GroupDescription
    members: list[_Trajectory] = field(default_factory=list)
    cancelled: bool = False

    def ids(self, end: TrajectoryEnd | None) -> tuple[str, ...]:
        return tuple(sorted(each.spec.trajectory_id for each in self.members if each.end is end))

    @property
    def _budget(self) -> int:
        default = len(self.members) if self.spec.on_infra is OnInfra.REPLACE else self.spec.size
        return default if self.spec.infra_budget is None else self.spec.infra_budget

    def _lost_for(self, on_infra: OnInfra) -> tuple[str, ...]:
        """Lost members that it deals with so, within its budget."""
        return self.ids(TrajectoryEnd.LOST)[: self._budget] if self.spec.on_infra is on_infra else ()

    @property
    def seats(self) -> int:
        """How many are taken."""
        return len(self.members) - len(self._lost_for(OnInfra.REPLACE))

    @property
    def has_quorum(self) -> bool:
        completed = len(self.ids(TrajectoryEnd.COMPLETED)) + len(self._lost_for(OnInfra.MASK))
        left = self.spec.size - len(self._lost_for(OnInfra.DROP))
        return completed >= min(self.spec.quorum or self.spec.size, left)

    @property
    def is_over(self) -> bool:
        return not self.ids(None) and (self.has_quorum or self.cancelled or self.seats >= self.spec.size)

    def status(self) -> GroupStatus:
        completed, lost = self.ids(TrajectoryEnd.COMPLETED), self._lost_for(OnInfra.REPLACE)
        kept = set(self.ids(TrajectoryEnd.LOST)) - set(lost)
        abandoned = tuple(sorted({*self.ids(TrajectoryEnd.ABANDONED), *kept}))
        masked, dropped = self._lost_for(OnInfra.MASK), self._lost_for(OnInfra.DROP)
        return GroupStatus(self.spec, self.ids(None), completed, abandoned, lost, self.has_quorum, masked, dropped)


class FakeBackend:
    """The `Backend` of a `FakeClient`."""

    def __init__(self, scripts: Mapping[type[Any], Callable[[Any], Any]], steps: StepTallies | None = None) -> None:
        self._steps = steps or StepTallies()
        self.submitted: list[Submission[Any]] = []
        self.cancelled: list[tuple[str, str, str]] = []
        self.published: list[tuple[str, int]] = []
        self.weights: list[tuple[str, int, PublishedWeights]] = []
        self._versions: dict[str, int] = {}
        self._rollouts: dict[Key, RolloutStatus] = {}
        self.closed_trajectories: dict[Key, TrajectoryEnd] = {}
        self.open_jobs: dict[str, JobDescription] = {}
        self._scripts = scripts
        self._trajectories: dict[Key, _Trajectory] = {}
        self._groups: dict[Key, _Group] = {}
        self._buffers: dict[str, FakeBuffer] = {}
        self._handles: dict[Key, tuple[Submission[Any], FakeHandle[Any]]] = {}
        self._ids = 0

    async def connect(self) -> None:
        """Does nothing: there is nobody to connect to."""

    async def open_job(self, job: JobDescription) -> Opening:
        """Opens a job."""
        encode_job(job)
        known = self.open_jobs.setdefault(job.job_id, job)
        if known != job:
            raise _taken("job_id", job.job_id, "the job is open with another body")
        return Opening.CREATED if known is job else Opening.ATTACHED

    async def close_job(self, job_id: str) -> None:
        """Closes a job and its trajectories, and forgets its ids."""
        self._check_job(job_id)
        await self.cancel_work(CancelTarget(job_id, reason="the job was closed"))
        del self.open_jobs[job_id]
        self._buffers.pop(job_id, None)
        self._versions.pop(job_id, None)
        for kept in (self._trajectories, self._groups, self._handles, self._rollouts):
            for key in [key for key in kept if key[0] == job_id]:
                del kept[key]

    async def publish(self, job_id: str, version: int, weights: PublishedWeights | None) -> None:
        """Records the version and its weights, and cancels trajectories that are too stale."""
        self._check_job(job_id)
        encode_publish(job_id, 0, weights)  # its rules are the contract's
        if not 0 <= whole("version", version, "a whole number, 0 or more") < 2**63:
            raise invalid("version", version, "0 or more")
        newest = self._policy_version(job_id)
        if version < newest:
            rule = f"not older than the newest ({newest})"
            raise unfit("version", str(version), rule)
        self.published.append((job_id, version))
        self._versions[job_id] = version
        if weights is not None:
            service = weights.service or "policy"
            self.weights.append((job_id, version, weights))
            engine = RolloutEngine("fake-engine", EngineState.PROVED, version, serving=True)
            status = RolloutStatus(service, version, UpdateMode(weights.mode), weights.at_once, (engine,))
            self._rollouts[job_id, service] = status
        staleness = self.open_jobs[job_id].staleness
        for each in self._of_job(job_id):
            bound = staleness.max_versions if staleness is not None else None
            if bound is not None and version - each.policy_version > bound:
                self._end(each, TrajectoryEnd.ABANDONED, "too stale")

    async def open_trajectory(self, trajectory: TrajectoryDescription, *, close_if_cancelled: bool = True) -> Opened:
        """Opens a trajectory. Nobody can be cancelled meanwhile."""
        del close_if_cancelled
        encode_trajectory(trajectory)
        self._check_job(trajectory.job_id)
        key = (trajectory.job_id, trajectory.trajectory_id)
        known = self._trajectories.get(key)
        if known is not None:
            if known.spec != trajectory:
                raise _taken("trajectory_id", key[1], "the trajectory was opened with another body")
            return Opened(Opening.ATTACHED if known.end is None else Opening.CLOSED, known.end)
        opened = _Trajectory(trajectory, self._policy_version(trajectory.job_id))
        if trajectory.group is not None:
            self._join(trajectory.job_id, trajectory.group, opened)
        self._trajectories[key] = opened
        return Opened(Opening.CREATED)

    async def close_trajectory(self, job_id: str, trajectory_id: str, end: TrajectoryEnd, reason: str = "") -> None:
        """Closes a trajectory."""
        encode_trajectory_end(end)
        trajectory = self._find(job_id, trajectory_id)
        if trajectory.end not in {None, end}:
            raise _taken("end", end.value, f"the trajectory has ended as {trajectory.end}: {trajectory.reason}")
        self._end(trajectory, end, reason or "closed by its client")

    async def finish_trajectory(self, job_id: str, trajectory_id: str, result: FinishedResult) -> None:
        """Closes a trajectory as completed, and puts it into the job's buffer."""
        encode_result(result)
        trajectory = self._find(job_id, trajectory_id)
        first = trajectory.end is None
        await self.close_trajectory(job_id, trajectory_id, TrajectoryEnd.COMPLETED)
        if first or trajectory_id in self._buffer(job_id).trajectories:
            group_id = trajectory.spec.group.group_id if trajectory.spec.group else ""
            self._buffer(job_id).add(trajectory_id, group_id, result, trajectory.policy_version)

    async def take_batch(self, job_id: str, request: BatchRequest) -> BatchContent:
        """Takes a batch; its lease never ends."""
        self._check_job(job_id)
        encode_batch_request(job_id, request)  # its rules are the contract's
        return await self._buffer(job_id).take(request, lambda: self._policy_version(job_id))

    async def settle_batch(self, job_id: str, batch_id: str, settlement: Settlement) -> None:
        """Acknowledges a batch, gives it back or extends its lease."""
        self._check_job(job_id)
        self._buffer(job_id).settle(batch_id, settlement)

    def _buffer(self, job_id: str) -> FakeBuffer:
        def is_over(group_id: str) -> bool:
            group = self._groups[job_id, group_id]
            return group.is_over

        return self._buffers.setdefault(job_id, FakeBuffer(is_over))

    async def cancel_work(self, work: CancelTarget) -> None:
        """Gives up what is unfinished."""
        instance("reason", work.reason, str, "text")
        self._check_job(work.job_id)
        if work.trajectory_id:
            self._end(self._find(work.job_id, work.trajectory_id), TrajectoryEnd.ABANDONED, work.reason)
            return
        members = self._of_job(work.job_id)
        if work.group_id:
            group = self._groups.get((work.job_id, work.group_id))
            if group is None:
                raise not_found("group_id", work.group_id, "there is no such group")
            group.cancelled = True
            members = group.members
        for each in members:
            self._end(each, TrajectoryEnd.ABANDONED, work.reason)
        if not work.group_id:
            self._cancel_actions(work.job_id, "", work.reason)

    async def jobs(self, job_id: str) -> list[JobStatus]:
        """Open jobs; with an id only that one."""
        if job_id:
            self._check_job(job_id)
        return [self._job_status(each) for each in ([job_id] if job_id else self.open_jobs)]

    async def trajectories(
        self, job_id: str, *, trajectory_id: str = "", group_id: str = "", closed: bool = False
    ) -> list[TrajectoryStatus]:
        """Trajectories of an open job."""
        self._check_job(job_id)
        if trajectory_id:
            return [self._status(self._find(job_id, trajectory_id))]
        found = sorted(self._of_job(job_id), key=lambda each: each.spec.trajectory_id)
        if group_id:
            found = [each for each in found if each.spec.group and each.spec.group.group_id == group_id]
        return [self._status(each) for each in found if closed or each.end is None]

    async def groups(self, job_id: str, group_id: str = "") -> list[GroupStatus]:
        """Groups of an open job."""
        self._check_job(job_id)
        names = sorted(name for job, name in self._groups if job == job_id and group_id in {"", name})
        found = [self._groups[job_id, name] for name in names]
        if group_id and not found:
            raise not_found("group_id", group_id, "there is no such group")
        return [group.status() for group in found]

    def new_action_id(self) -> str:
        """Returns "action-1", "action-2" and so on."""
        self._ids += 1
        return f"action-{self._ids}"

    async def submit(self, submission: Submission[Any]) -> ActionHandle[Any]:
        """Accepts an action; its script runs when the outcome is awaited."""
        encode_submission(submission)  # its rules are the contract's
        key = (submission.job_id, submission.action_id)
        self._check_job(submission.job_id)
        known = self._handles.get(key)
        if known is not None:
            if _body(known[0]) != _body(submission):
                raise _taken("action_id", key[1], "an action of this id has another body")
            return known[1]
        if submission.trajectory_id:
            self._check_open(submission.job_id, submission.trajectory_id)
        script = self._scripts.get(type(submission.action))
        if script is None:
            raise LookupError(f"no script for {submission.action.kind.value}: {submission.action!r}")
        handle = FakeHandle(submission, script, self.cancelled, self._steps)
        self._handles[key] = (submission, handle)
        self.submitted.append(submission)
        return handle

    def _join(self, job_id: str, spec: GroupDescription, member: _Trajectory) -> None:
        group = self._groups.setdefault((job_id, spec.group_id), _Group(spec))
        if group.spec != spec:
            raise _taken("group.group_id", spec.group_id, "the group was opened with another body")
        if group.cancelled or group.seats >= spec.size:
            raise unfit("group.group_id", spec.group_id, "the group takes no more members")
        group.members.append(member)

    def _end(self, trajectory: _Trajectory, end: TrajectoryEnd, reason: str) -> None:
        if trajectory.end is not None:
            return
        spec = trajectory.spec
        trajectory.end, trajectory.reason = end, reason
        self.closed_trajectories[spec.job_id, spec.trajectory_id] = end
        self._cancel_actions(spec.job_id, spec.trajectory_id, reason)
        group = self._groups.get((spec.job_id, spec.group.group_id)) if spec.group else None
        if group is not None and group.has_quorum:
            for each in group.members:
                self._end(each, TrajectoryEnd.ABANDONED, "redundant: its group has its quorum")

    def _cancel_actions(self, job_id: str, trajectory_id: str, reason: str) -> None:
        for submission, handle in self._handles.values():
            if submission.job_id == job_id and trajectory_id in {"", submission.trajectory_id}:
                handle.end_as_cancelled(reason)

    def _status(self, trajectory: _Trajectory) -> TrajectoryStatus:
        spec = trajectory.spec
        waiting = [
            handle
            for submission, handle in self._handles.values()
            if (submission.job_id, submission.trajectory_id) == (spec.job_id, spec.trajectory_id) and not handle.done
        ]
        return TrajectoryStatus(
            spec, trajectory.end, trajectory.reason, len(waiting), True, policy_version=trajectory.policy_version
        )

    def _job_status(self, job_id: str) -> JobStatus:
        return JobStatus(
            self.open_jobs[job_id],
            open_trajectories=sum(each.end is None for each in self._of_job(job_id)),
            policy_version=self._policy_version(job_id),
            sessions=1,
            rollouts=tuple(each for key, each in sorted(self._rollouts.items()) if key[0] == job_id),
            buffer=self._buffer(job_id).status(),
        )

    def _of_job(self, job_id: str) -> list[_Trajectory]:
        return [each for key, each in self._trajectories.items() if key[0] == job_id]

    def _policy_version(self, job_id: str) -> int:
        return self._versions.get(job_id, 0)

    def _find(self, job_id: str, trajectory_id: str) -> _Trajectory:
        self._check_job(job_id)
        trajectory = self._trajectories.get((job_id, trajectory_id))
        if trajectory is None:
            raise not_found("trajectory_id", trajectory_id, "there is no such trajectory")
        return trajectory

    def _check_open(self, job_id: str, trajectory_id: str) -> None:
        trajectory = self._trajectories.get((job_id, trajectory_id))
        if trajectory is None:
            raise not_found("trajectory_id", trajectory_id, "the trajectory is not open")
        if trajectory.end is not None:
            raise unfit("trajectory_id", trajectory_id, f"the trajectory was closed: {trajectory.reason}")

    def _check_job(self, job_id: str) -> None:
        if job_id not in self.open_jobs:
            raise not_found("job_id", job_id, "the job is not open")


def _body(submission: Submission[Any]) -> object:
    spec, _ = encode_submission(submission)
    spec.ClearField("traceparent")
    return spec


def _taken(field: str, value: str, rule: str) -> RefusedError:
    return refused(RefusalCode.ALREADY_EXISTS, field=field, value=value, rule=rule)
