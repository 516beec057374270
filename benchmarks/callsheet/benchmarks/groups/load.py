"""Groups one after another, each with trajectories of a few steps of which some hang and some crash."""

from __future__ import annotations

import random
from collections import Counter

import anyio
from callsheet.benchmarks.groups.settings import GroupsBenchSettings
from callsheet.client import (
    Demand,
    EnvError,
    Failed,
    FailureKind,
    Job,
    OnInfra,
    Reason,
    Timeouts,
    Trajectory,
)

_LOST_TO = (FailureKind.INFRA, FailureKind.ENV)


class GroupLoad:
    """Keeps groups running until it is cancelled.

    Attributes:
        counts: Trajectories that "hung" and that "crashed".
    """

    def __init__(self, job: Job, settings: GroupsBenchSettings, quorum: int, *, faults: bool) -> None:
        self._job = job
        self._settings = settings
        self._quorum = quorum
        self._faults = faults
        self._groups = 0
        self.counts: Counter[str] = Counter()

    async def run(self, most_groups: int | None = None) -> None:
        """Runs as many groups at once as the settings say, without end or so many in all."""
        async with anyio.create_task_group() as tasks:
            for _ in range(self._settings.live_groups):
                tasks.start_soon(self._lane, most_groups)

    async def _lane(self, most_groups: int | None) -> None:
        while most_groups is None or self._groups < most_groups:
            number, self._groups = self._groups, self._groups + 1
            size, name = self._settings.size, f"g{number:04d}"
            async with self._job.group(
                name, size=size, quorum=self._quorum, on_infra=OnInfra.REPLACE, infra_budget=4 * size, lost_to=_LOST_TO
            ) as group:
                group.start(self._rollout)

    async def _rollout(self, trajectory: Trajectory) -> None:
        """What goes wrong is drawn by the trajectory's name, so that all ways to run groups meet the same."""
        settings = self._settings
        drawn = random.Random(f"{settings.seed} {trajectory.trajectory_id}")
        fault, at = drawn.random(), drawn.randrange(settings.steps)
        hangs = self._faults and fault < settings.hanging
        crashes = self._faults and not hangs and fault < settings.hanging + settings.crashing
        await trajectory.env_reset(demand=Demand())
        for step in range(settings.steps):
            takes_s = settings.step_s * drawn.uniform(0.5, 1.5)
            if step == at and hangs:
                self.counts["hung"] += 1
                timeouts = Timeouts(start_to_close_s=settings.hang_s)
                hung = await trajectory.env_step("hang", demand=Demand(), expected_duration_s=3600.0, timeouts=timeouts)
                hung.unwrap()
            if step == at and crashes:
                self.counts["crashed"] += 1
                raise EnvError(Failed(FailureKind.ENV, Reason.CANNOT_EXECUTE, "the environment crashed"))
            (await trajectory.env_step("step", demand=Demand(), expected_duration_s=takes_s)).unwrap()
        await trajectory.finish(drawn.random())
