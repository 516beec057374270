"""Whole histories with crashes and broken streams: every action gets exactly one outcome, no env_step runs twice."""

from __future__ import annotations

import os
import random

import pytest
from callsheet.scheduler.core.state.scheduler_state import CoreSettings
from callsheet.scheduler.core.words.model import ActionKey, ActionKind
from callsheet.scheduler.core.work.job_expiry import EXPIRED

from tests.sim.sim_parts import action_request
from tests.sim.sim_world import Misfortune, World
from tests.support.gated_planner import GatedPlanner
from tests.support.samples import is_nightly

MISFORTUNES = {
    "calm": Misfortune(),
    "failing_attempts": Misfortune(failure_rate=0.1),
    "scheduler_crashes": Misfortune(scheduler_crashes=0.3),
    "slow_commits_and_crashes": Misfortune(scheduler_crashes=0.25, commit_s=0.3),
    "manager_crashes": Misfortune(manager_crashes=0.2),
    "broken_streams": Misfortune(client_cuts=0.5, manager_cuts=0.5),
    "slow_streams": Misfortune(slowness=0.3, client_cuts=0.05, manager_cuts=0.1),
    "absent_trainers": Misfortune(client_absences=0.5, slowness=0.1),
    "absent_trainers_and_crashes": Misfortune(scheduler_crashes=0.1, manager_crashes=0.1, client_absences=0.5),
    "cancels_and_scheduler_crashes": Misfortune(scheduler_crashes=0.2, cancels=0.5),
    "everything": Misfortune(0.1, 0.1, 0.2, 0.2, cancels=0.1, failure_rate=0.05, slowness=0.05, commit_s=0.1),
}


def seeds(by_day: int | None = None) -> list[int]:
    """A fixed seed and a fresh one in the night, and one by day: fresh, or `by_day`. CALLSHEET_SIM_SEED replays one."""
    if replayed := os.environ.get("CALLSHEET_SIM_SEED"):
        return [int(replayed)]
    fresh = random.SystemRandom().randrange(1 << 32)
    return [1, fresh] if is_nightly() else [fresh if by_day is None else by_day]


@pytest.mark.parametrize("name", sorted(MISFORTUNES))
def test_every_action_has_one_outcome(name: str) -> None:
    """Plays histories for several seeds and accounts for every action, sandbox and unit."""
    for seed in seeds(1 if name == "absent_trainers" else None):
        world = World(seed, MISFORTUNES[name])
        try:
            world.run()
            check_history(world)
            if (name, seed) == ("absent_trainers", 1):
                # Such histories would say nothing of leases if none ever ran out.
                assert any(row.reason == EXPIRED for row in world.journal.trajectories.values())
        except AssertionError as error:
            raise AssertionError(f"replay with CALLSHEET_SIM_SEED={seed} -k {name}: {error}") from error


def test_trajectories_that_wait_for_admission_survive_everything() -> None:
    """Three trajectories at a time: a scheduler that was restarted keeps to that, and forgets nobody who waits."""
    for seed in seeds():
        world = World(seed, MISFORTUNES["everything"], planner=GatedPlanner(3))
        try:
            world.run()
            check_history(world)
        except AssertionError as error:
            raise AssertionError(f"replay with CALLSHEET_SIM_SEED={seed} -k admission: {error}") from error


def test_what_is_forgotten_never_runs_again() -> None:
    """Few finished actions are kept, and clients submit old ones again and again, over crashes."""
    settings = CoreSettings(
        manager_lease=10.0, cancel_grace=5.0, orphan_lease=60.0, finished_actions=10, finished_actions_s=20.0
    )
    misfortune = Misfortune(0.05, 0.05, 0.2, 0.1, resubmits=10.0, slowness=0.02, commit_s=0.1)
    for seed in seeds():
        world = World(seed, misfortune, settings=settings)
        try:
            world.run()
            check_history(world)
            assert len(world.state.jobs["job"].forgotten) > 50
            assert len(world.journal.outcomes) <= 10, "what is kept is bounded"
            assert any("is forgotten" in refusal for refusal in world.client.refusals)
        except AssertionError as error:
            raise AssertionError(f"replay with CALLSHEET_SIM_SEED={seed} -k forgotten: {error}") from error


def check_history(world: World) -> None:
    """What must hold once the dust has settled."""
    client = world.client
    lease = world.state.jobs["job"].lease
    assert (bool(lease.sessions), lease.expired) == (True, False), "its client is there"
    assert client.completed == client.trajectories, f"{client.completed} of {client.trajectories} trajectories ended"
    assert not client.waiting, f"without an outcome: {sorted(client.waiting)}"
    assert client.acknowledged <= set(client.outcomes) | client.forgotten
    forgotten = world.state.jobs["job"].forgotten
    assert all(key.action_id in forgotten for key in client.forgotten)
    for key in [key for key in client.specs if key.action_id in forgotten]:
        if action_request(client.specs[key]).kind is ActionKind.ENV_STEP:
            assert world.starts[key] <= 1, f"{key} was forgotten and started {world.starts[key]} times"
    for kept, row in world.journal.actions.items():
        key = ActionKey(*kept)
        assert client.outcomes[key] == world.journal.outcomes[key], f"{key}: told otherwise than kept"
        if action_request(client_spec(world, key.action_id)).kind is ActionKind.ENV_STEP:
            assert world.starts[key] <= 1, f"{key} ({row}) started {world.starts[key]} times"
    assert not world.state.attempts
    assert world.state.open_actions == 0
    for node in world.state.nodes.values():
        free = {resource: node.available(resource) for resource in node.capacity}
        assert node.free == free, f"{node.node_id} kept {node.granted}"
    for manager in world.managers.values():
        assert not manager.sandboxes, f"{manager.manager_id} kept {manager.sandboxes}"
        assert not manager.ends, f"{manager.manager_id} kept {manager.ends}"


def client_spec(world: World, action_id: str) -> bytes:
    """The spec an action id stands for."""
    number, step = (int(part) for part in action_id[1:].split("-"))
    last = 2 * world.client.steps + 1
    kind = {0: "ENV_RESET", last: "REWARD"}.get(step, "GENERATE" if step % 2 else "ENV_STEP")
    return f"job/t{number}/{action_id}/{kind}".encode()


def test_the_same_seed_gives_the_same_history() -> None:
    """A seed replays."""
    histories = []
    for _ in range(2):
        world = World(7, MISFORTUNES["everything"])
        world.run()
        histories.append((world.time.now, dict(world.starts), world.client.outcomes))
    assert histories[0] == histories[1]
