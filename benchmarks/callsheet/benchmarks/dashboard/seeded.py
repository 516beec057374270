"""A journal as an hour of many rollouts leaves it, drawn from a seed and written by the scheduler's own journal."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from callsheet.scheduler.core.words.model import ActionKind, ActionState, FailureKind, TrajectoryEnd
from callsheet.scheduler.core.words.records import (
    ActionDispatched,
    ActionFinished,
    ActionSubmitted,
    ActionSummary,
    JobOpened,
    PolicyVersionPublished,
    Record,
    SchedulerAlive,
    TrajectoryClosed,
    TrajectoryOpened,
)
from callsheet.scheduler.store.journal import open_journal
from callsheet.v1 import action_pb2, job_pb2, outcome_pb2

JOBS = ("seeded-0", "seeded-1", "seeded-2", "seeded-3")
GROUP_SIZE = 8
# With one policy version of one job.
GROUPS_OF_STEP = 64
_PAST_S = 3_000.0
_RECORDS_PER_COMMIT = 16_384
_ENGINES, _NODES = 8, 32
_FAILED = 0.03
_WAITING = 0.1
_TOKENS = 64


# The actions of a trajectory: their kinds, where they run, and how long they take at most.
_TURNS = (
    (ActionKind.GENERATE, [f"engine-{number}" for number in range(_ENGINES)], 40.0),
    (ActionKind.ENV_STEP, [f"node-{number}-sandbox" for number in range(_NODES)], 10.0),
    (ActionKind.REWARD, [f"node-{number}-reward" for number in range(_NODES)], 5.0),
)


@dataclass(frozen=True, slots=True)
class SeededTrajectory:
    """A trajectory of the journal.

    Attributes:
        number: Its place in the order of their openings.
        open: Whether it is.
        job_id: Jobs have groups in turn.
        group_id: Of it and its siblings.
        version: The policy version that it began with, which is its step.
    """

    number: int
    open: bool
    job_id: str
    group_id: str
    version: int

    @property
    def trajectory_id(self) -> str:
        """Its id; with the number of a turn it begins the ids of its actions."""
        return f"{self.group_id}-{self.number % GROUP_SIZE}"


def seeded_trajectory(number: int, ended: int) -> SeededTrajectory:
    """A trajectory by its number; so many are not open any more."""
    group = number // GROUP_SIZE
    version = group // (GROUPS_OF_STEP * len(JOBS))
    return SeededTrajectory(number, number >= ended, JOBS[group % len(JOBS)], f"group-{group:06d}", version)


def write_journal(data_dir: Path, live: int, ended: int, *, seed: int, now: float) -> list[SeededTrajectory]:
    """Writes a journal into a data directory of a scheduler, which has none yet; returns its trajectories.

    Args:
        data_dir: Of the scheduler that continues from it.
        live: Open trajectories, of which some wait for an action.
        ended: Closed ones.
        seed: Of times and failures.
        now: Seconds since the epoch; all of it happened in the hour before.
    """
    made = [seeded_trajectory(number, ended) for number in range(live + ended)]
    records = _records(made, random.Random(seed), now)
    with closing(open_journal(data_dir)) as journal:
        journal.begin_epoch()
        journal.commit([JobOpened(job, job_pb2.JobSpec(job_id=job, share=1.0).SerializeToString()) for job in JOBS])
        while part := list(islice(records, _RECORDS_PER_COMMIT)):
            journal.commit(part)
    return made


def _records(made: list[SeededTrajectory], draw: random.Random, now: float) -> Iterator[Record]:
    for each in made:
        began = now - _PAST_S * (1.0 - each.number / len(made))
        group = job_pb2.GroupSpec(group_id=each.group_id, size=GROUP_SIZE, quorum=GROUP_SIZE)
        spec = job_pb2.TrajectorySpec(job_id=each.job_id, trajectory_id=each.trajectory_id, group=group)
        encoded = spec.SerializeToString()
        yield TrajectoryOpened(each.job_id, each.trajectory_id, encoded, each.version, began, each.group_id)
        at = began
        for turn in range(len(_TURNS) - each.open):
            at = min(at + draw.uniform(0.01, 3.0), now)
            ended = min(at + draw.uniform(0.1, _TURNS[turn][2]), now)
            yield from _action(each, turn, draw, at, ended)
            at = ended
        if not each.open:
            end, reward = TrajectoryEnd.COMPLETED.value, float(draw.randrange(2))
            yield TrajectoryClosed(each.job_id, each.trajectory_id, end, "", at, reward)
        elif draw.random() < _WAITING:
            yield _waiting(each, at)
    for number, job in enumerate(JOBS):
        yield PolicyVersionPublished(job, made[-1].version + number % 2)
    yield SchedulerAlive(now)


def _waiting(each: SeededTrajectory, at: float) -> ActionSubmitted:
    """It waits for a service that nobody serves."""
    action_id = f"{each.trajectory_id}-waits"
    spec = _spec(each, action_id)
    spec.service, spec.unservable = "search", action_pb2.UNSERVABLE_WAIT
    spec.tool_call.method = "find"
    return _submitted(each, action_id, ActionKind.TOOL_CALL, spec, at)


def _spec(each: SeededTrajectory, action_id: str) -> action_pb2.ActionSpec:
    return action_pb2.ActionSpec(
        job_id=each.job_id, action_id=action_id, trajectory_id=each.trajectory_id, label="turn", task=each.group_id
    )


def _submitted(
    each: SeededTrajectory, action_id: str, kind: ActionKind, spec: action_pb2.ActionSpec, at: float
) -> ActionSubmitted:
    body = spec.SerializeToString()
    return ActionSubmitted(each.job_id, action_id, each.trajectory_id, action_id.encode(), body, at, kind=kind.value)


def _action(each: SeededTrajectory, turn: int, draw: random.Random, at: float, ended: float) -> Iterator[Record]:
    """An action with its outcome; its execution began at `at`."""
    action_id, (kind, managers, _) = f"{each.trajectory_id}-{turn}", _TURNS[turn]
    spec, outcome = _spec(each, action_id), outcome_pb2.Outcome(attempts=1)
    outcome.key.job_id, outcome.key.action_id = each.job_id, action_id
    outcome.manager_id = draw.choice(managers)
    if kind is ActionKind.GENERATE:
        spec.generate.prompt_token_ids.extend(range(_TOKENS))
        generated = outcome.succeeded.generate
        generated.token_ids.extend(draw.choices(range(1_000), k=_TOKENS))
        generated.policy_versions.add(version=each.version, begin=0, end=_TOKENS)
        outcome.usage.cost.used.update(tokens_in=_TOKENS, tokens_out=_TOKENS)
    elif kind is ActionKind.ENV_STEP:
        spec.env_step.command.shell = "pytest -q"
        outcome.succeeded.env_step.stdout.inline = b"%d passed\n" % draw.randrange(100)
    else:
        spec.reward.test_suite.command.shell = "pytest -q hidden"
        outcome.succeeded.reward.score = float(draw.randrange(2))
    state = ActionState.SUCCEEDED
    if draw.random() < _FAILED:
        state = ActionState.FAILED
        outcome.failed.kind, outcome.failed.reason = outcome_pb2.FAILURE_KIND_POLICY, "bad_command"
    submitted_at = at - draw.uniform(0.0, 0.01)
    times = {"submitted": submitted_at, "first_dispatched": at, "dispatched": at, "started": at, "ended": ended}
    for name, time in times.items():
        getattr(outcome.timeline, name).FromNanoseconds(int(time * 1e9))
    outcome.timeline.queue_s, outcome.timeline.execution_s = at - submitted_at, ended - at
    outcome.usage.cost.held["cpu"] = ended - at
    summary = _summary(each, kind, state, outcome, (submitted_at, at, ended))
    yield _submitted(each, action_id, kind, spec, submitted_at)
    number = each.number * len(_TURNS) + turn + 1
    yield ActionDispatched(each.job_id, action_id, 1, 1, number, outcome.manager_id, "")
    yield ActionFinished(each.job_id, action_id, state.value, outcome.SerializeToString(), ended, summary, True)


def _summary(
    each: SeededTrajectory,
    kind: ActionKind,
    state: ActionState,
    outcome: outcome_pb2.Outcome,
    times: tuple[float, float, float],
) -> ActionSummary:
    """Of an action that was submitted, began and ended at these times."""
    submitted_at, at, ended = times
    return ActionSummary(
        job_id=each.job_id,
        action_id=outcome.key.action_id,
        kind=kind.value,
        state=state.value,
        label="turn",
        failure=FailureKind.POLICY.name if state is ActionState.FAILED else "",
        reason=outcome.failed.reason,
        attempts=1,
        manager_id=outcome.manager_id,
        node_id=outcome.manager_id,
        submitted_at=submitted_at,
        ended_at=ended,
        queue_s=at - submitted_at,
        execution_s=ended - at,
        traceparent="",
        task=each.group_id,
        service="",
        held=dict(outcome.usage.cost.held),
        used=dict(outcome.usage.cost.used),
        story=[],
    )
