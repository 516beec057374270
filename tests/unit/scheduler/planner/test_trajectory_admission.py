"""Which trajectories may begin: memory, staleness, load and turns."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, ActionState, PriorityClass, TrajectoryKey
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.fleet.pools import Fleet
from callsheet.scheduler.planner.question.instance import OptionBlock
from callsheet.scheduler.planner.round.admission import Admission, Candidate, choose
from callsheet.scheduler.planner.round.cpu_load import CpuLoad
from callsheet.scheduler.planner.round.sandbox_room import SandboxRoom

from tests.support.core_requests import action_request, job_request, kept, trajectory_request
from tests.support.core_world import CoreWorld, FakeManager, service

IN_SANDBOX = [ActionKind.ENV_RESET, ActionKind.ENV_STEP]


def sandbox_world(*, memory: int, admission: bool = True) -> tuple[CoreWorld, FakeManager]:
    """One node whose cores are shared, with so much memory for sandboxes."""
    world = CoreWorld(planner=ElasticPlanner(ElasticSettings(admission=admission)))
    manager = world.manager("m", service("sandbox", IN_SANDBOX, shared={"cpu": 4}), cores=4, memory=memory)
    return world, manager


def begin(
    world: CoreWorld, count: int, *, job_id: str = "job", memory: int = 100, first: int = 0, image: str = ""
) -> None:
    """Trajectories that want a sandbox."""
    for index in range(first, first + count):
        world.trajectory(trajectory_request(f"{job_id}-t{index}", job_id=job_id))
        request = action_request(
            f"{job_id}-r{index}",
            ActionKind.ENV_RESET,
            f"{job_id}-t{index}",
            job_id=job_id,
            demand=kept(memory=memory),
            service=image,
        )
        world.submit(request)


def admitted(world: CoreWorld) -> list[TrajectoryKey]:
    """Plans until no round asks for another one; the trajectories let begin."""
    plans = [world.plan()]
    while plans[-1].truncated:
        plans.append(world.plan())
    return [key for plan in plans for key in plan.admitted]


def test_as_many_begin_as_find_memory() -> None:
    world, manager = sandbox_world(memory=350)
    world.job()
    begin(world, 5)
    assert [key[1] for key in admitted(world)] == ["job-t0", "job-t1", "job-t2"]
    manager.run("job-r0")
    assert admitted(world) == []
    world.close_trajectory("job-t0")
    assert [key[1] for key in admitted(world)] == ["job-t3"]


def test_sandboxes_of_different_sizes_take_the_same_memory() -> None:
    world, _ = sandbox_world(memory=1000)
    world.job()
    for index, memory in enumerate((400, 300, 200, 150, 100)):
        begin(world, 1, memory=memory, first=index)
    # In order, and the first that finds no room holds up those behind it.
    assert [key[1] for key in admitted(world)] == ["job-t0", "job-t1", "job-t2"]


def test_without_admission_all_begin_and_their_resets_wait() -> None:
    world, _ = sandbox_world(memory=350, admission=False)
    world.job()
    begin(world, 5)
    assert len(admitted(world)) == 5
    assert len(world.state.ready) == 2


def test_jobs_take_turns_by_weight_and_priority_comes_first() -> None:
    world, _ = sandbox_world(memory=600)
    world.job()
    world.job(job_request("other", weight=2.0))
    world.job(job_request("batch", priority=PriorityClass.BATCH))
    for job_id in ("batch", "job", "other"):
        begin(world, 5, job_id=job_id)
    assert Counter(key[0] for key in admitted(world)) == {"job": 2, "other": 4}


def test_no_more_live_than_a_trainer_consumes_before_they_are_stale() -> None:
    world, manager = sandbox_world(memory=100_000)
    world.job(job_request(max_staleness=1))
    begin(world, 12)
    assert len(admitted(world)) == 12, "nothing is known of the trainer yet"
    for version in range(1, 4):
        for index in range(4 * (version - 1), 4 * version):
            manager.run(f"job-r{index}")
            # One that has become too stale meanwhile was closed by the scheduler.
            if f"job-t{index}" in world.state.jobs["job"].trajectories:
                world.close_trajectory(f"job-t{index}")
        begin(world, 4, first=12 + 4 * version)
        world.plan()
        world.publish(version)
        admitted(world)
    begin(world, 40, first=100)
    admitted(world)
    # Four end to a version, so those of this one and of the next may live.
    assert world.state.jobs["job"].live_trajectories == 8
    world.close_job()
    world.job(job_request(max_staleness=1))
    begin(world, 12)
    assert len(admitted(world)) == 12, "a job that is opened again has another trainer"


def test_each_image_has_the_room_of_its_own_managers() -> None:
    world = CoreWorld(planner=ElasticPlanner())
    for name, memory in (("one", 100), ("two", 500)):
        world.manager(name, service(f"sandbox:{name}", IN_SANDBOX, shared={"cpu": 4}), cores=4, memory=memory)
    world.job()
    world.job(job_request("other"))
    begin(world, 3, image="sandbox:one")
    begin(world, 3, job_id="other", image="sandbox:two")
    assert Counter(key[0] for key in admitted(world)) == {"job": 1, "other": 3}


def test_a_large_sandbox_is_not_passed_over_for_ever_by_small_ones() -> None:
    world, _ = sandbox_world(memory=400)
    world.manager("m2", service("sandbox", IN_SANDBOX, shared={"cpu": 4}), cores=4, memory=400)
    world.job()
    world.job(job_request("small"))
    begin(world, 9, job_id="small")
    admitted(world)
    begin(world, 1, memory=300)
    for turn in range(150):
        # Whatever a small one gives back, the next small one wants.
        run_small(world, turn)
        begin(world, 1, job_id="small", first=9 + turn)
        for manager_id in ("m", "m2"):
            world.handle(events.ManagerHeartbeat(manager_id, world.state.managers[manager_id].session))
        world.now += 1.0
        admitted(world)
    assert world.state_of("job-r0") is ActionState.DISPATCHED
    assert world.state.jobs["small"].live_trajectories > 0


def run_small(world: CoreWorld, number: int) -> None:
    """The reset of a small trajectory ends, and the trajectory with it."""
    action = world.live(ActionKey("small", f"small-r{number}"))
    attempt = action.attempt
    if attempt is not None:
        made = events.AttemptSucceeded(b"made", f"sandbox-{number}", f"small-t{number}")
        body_hash = action.request.body_hash
        world.handle(events.AttemptEnded(attempt.manager_id, attempt.token, action.key, 1, made, True, 0.5, body_hash))
    world.close_trajectory(f"small-t{number}", job_id="small")


def test_beyond_a_load_nobody_begins() -> None:
    load = CpuLoad(live=10, cores=4.0, idle_cores=0.0, work_s=1.0, alone_s=2.0, think_s=8.0)
    assert load.most_live(1.0) == 40.0
    candidates = [Candidate(2, 1.0, iter(()), 10, float("inf"))]
    assert choose(candidates, lambda _: True, 40.0) == []


def test_jobs_without_sandboxes_neither_wait_for_cores_nor_count_there() -> None:
    world, _ = sandbox_world(memory=100_000)
    world.manager("api", service("api", [ActionKind.TOOL_CALL]))
    world.job()
    world.job(job_request("tools"))
    begin(world, 2)
    for index in range(3):
        world.trajectory(trajectory_request(f"tools-t{index}", job_id="tools"))
        call = action_request(f"tools-c{index}", ActionKind.TOOL_CALL, f"tools-t{index}", job_id="tools", service="api")
        world.submit(call)
    admission = Admission(most_load=1.0, hold_after=5.0)
    assert admission.with_sandboxes(world.state) == {"job"}
    full = CpuLoad(live=0, cores=1.0, idle_cores=0.0, work_s=1.0, alone_s=1.0, think_s=0.0)
    room = SandboxRoom(world.state, Fleet(), lambda _: OptionBlock.of([]))
    began = admission.decide(world.state, full, room, world.now)
    assert Counter(key[0] for key in began) == {"tools": 3, "job": 1}, "cores bear one, and a call needs none"
    assert len(admitted(world)) == 5
    world.close_job("tools")
    world.close_job()
    assert admission.with_sandboxes(world.state) == set()


def test_while_cores_idle_somebody_begins_whatever_was_estimated() -> None:
    busy = CpuLoad(live=10, cores=4.0, idle_cores=0.0, work_s=4.0, alone_s=1.0, think_s=0.0)
    assert busy.most_live(1.0) == 10.0
    assert replace(busy, idle_cores=2.0).most_live(1.0) == 12.0
