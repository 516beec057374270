"""A job of two weeks in virtual time: what is kept of it is what its last day brought."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.scheduler.core.state.forgotten_ids import ENTRY_BYTES
from callsheet.scheduler.core.state.scheduler_state import CoreSettings
from callsheet.scheduler.core.words.model import ActionKind, GroupRequest
from callsheet.scheduler.core.words.refusals import RefusedError

from tests.support.core_requests import action_request, job_request, trajectory_request
from tests.support.core_world import SETTINGS, CoreWorld

HOUR_S = 3_600.0
DAYS = 14
# Of each hour: a group of two with an action each, and a trajectory alone.
EACH_HOUR = 5
DEFAULTS = CoreSettings()


def one_hour(world: CoreWorld, hour: int) -> None:
    """A prompt's rollouts, from their opening to their end."""
    group = GroupRequest(f"g{hour}", 2, 2)
    for name in ("a", "b"):
        trajectory_id = f"{hour}{name}"
        world.trajectory(trajectory_request(trajectory_id, group=group))
        world.submit(action_request(f"act-{trajectory_id}", ActionKind.GENERATE, trajectory_id, wait=True))
        world.close_trajectory(trajectory_id)
    world.trajectory(f"{hour}alone")
    world.close_trajectory(f"{hour}alone")
    world.wait(HOUR_S)


def test_what_is_kept_of_a_job_of_weeks_is_bounded() -> None:
    world = CoreWorld(settings=replace(SETTINGS, finished_actions_s=DEFAULTS.finished_actions_s))
    world.job(job_request("job"))
    kept = []
    for hour in range(DAYS * 24):
        one_hour(world, hour)
        if hour % 100 == 99:
            world.now += 5 * HOUR_S
            world = world.restart()
        kept.append(world.state.finished_actions + world.state.closed_trajectories)
    a_day = 25 * EACH_HOUR
    assert max(kept) <= a_day
    assert len(world.journal.actions) + len(world.journal.trajectories) <= a_day
    job = world.state.jobs["job"]
    assert len(job.groups) <= 25
    assert max(map(len, (job.closed, job.trajectory_specs, job.closed_trajectories))) <= a_day
    entries = sum(map(len, world.journal.forgotten["job"])) // ENTRY_BYTES
    assert entries == DAYS * 24 * (EACH_HOUR + 1) - kept[-1] - len(job.groups)
    with pytest.raises(RefusedError, match="is forgotten"):
        world.trajectory("0alone")
