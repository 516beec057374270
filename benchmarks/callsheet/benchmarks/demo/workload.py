"""Runs all episodes of the workload at once, in one mode."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import anyio
from callsheet.benchmarks.demo.episodes import Episode
from callsheet.benchmarks.demo.measurements import ActionRecord
from callsheet.benchmarks.demo.modes import DemoMode
from callsheet.benchmarks.demo.rollout import EpisodeResult, EpisodeRunner
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.client.client import Client


@dataclass(frozen=True, slots=True)
class ModeRun:
    """What came of the workload in one mode.

    Attributes:
        mode: The mode.
        rollouts: One per episode, in the order of their ends.
        wall_s: From the start of the first to the end of the last.
        step: What a trainer would log of it, see `Job.step_summary`.
    """

    mode: DemoMode
    rollouts: tuple[EpisodeResult, ...]
    wall_s: float
    step: Mapping[str, float] = field(default_factory=dict)

    @property
    def records(self) -> list[ActionRecord]:
        """All actions."""
        return [record for rollout in self.rollouts for record in rollout.records]


async def run_mode(
    client: Client, job_id: str, episodes: Sequence[Episode], mode: DemoMode, progress: Progress
) -> ModeRun:
    """Runs all episodes concurrently as trajectories of one job, which is closed at the end.

    Args:
        client: Connected to the scheduler.
        job_id: Of the job to open.
        episodes: What to run.
        mode: How to demand cores.
        progress: Told about every episode that ends.

    Raises:
        CallsheetError: The scheduler refused something, or cannot be reached (inside an exception group).
    """
    rollouts: list[EpisodeResult] = []
    actions = 0

    def count(_: ActionRecord) -> None:
        nonlocal actions
        actions += 1

    job = await client.open_job(job_id)
    began = time.monotonic()

    async def run(episode: Episode) -> None:
        rollout = await EpisodeRunner(job, episode, mode, count).run()
        rollouts.append(rollout)
        ended = f"{len(rollouts)} of {len(episodes)} episodes, {actions} actions, {time.monotonic() - began:.0f} s"
        progress(f"{mode.name}: {ended}; {episode.name} {_verdict(rollout)} after {rollout.turns} turns")

    async with job, anyio.create_task_group() as tasks:
        for episode in episodes:
            tasks.start_soon(run, episode)
    return ModeRun(mode, tuple(rollouts), time.monotonic() - began, job.step_summary())


def _verdict(rollout: EpisodeResult) -> str:
    if rollout.lost:
        return f"lost ({rollout.lost})"
    if rollout.score is None:
        return "ended without a score"
    return "solved" if rollout.is_solved else f"ended with score {rollout.score:.3f}"
