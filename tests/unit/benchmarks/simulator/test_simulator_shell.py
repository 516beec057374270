"""The shell around the core in the simulator: requests, managers, routing, and attempts between core and world."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.benchmarks.peers import NamedManager
from callsheet.benchmarks.simulator.policy import EndFacts, LiveRollout, Task
from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    Generation,
    GpuNodes,
    Mode,
    Model,
    Quota,
    Rollout,
    Scenario,
    ScenarioJob,
    Turn,
    Work,
)
from callsheet.benchmarks.simulator.shell.attempts import Attempts
from callsheet.benchmarks.simulator.shell.nodes import GatedMemory
from callsheet.benchmarks.simulator.shell.requests import GPU, RequestBook, join_all, rounded_up
from callsheet.benchmarks.simulator.shell.settings import OverheadModel
from callsheet.scheduler.core.words.commands import Dispatch
from callsheet.scheduler.core.words.events import ManagerJoined
from callsheet.scheduler.core.words.model import CPU, MEMORY, ActionKey, ActionKind, ActionRequest, Token

RESET = Work(ActionKind.ENV_RESET, "reset", 1.0, in_sandbox=True, peak_memory_mb=50)
STEP = Work(ActionKind.ENV_STEP, "test", 1.0, max_width=4, in_sandbox=True, peak_memory_mb=300)
SUITE = Work(ActionKind.REWARD, "suite", 8.0, max_width=16, parallel_fraction=0.9, peak_memory_mb=900)
JUDGE = Work(ActionKind.REWARD, "judge", service="judge", service_s=1.0)
SEARCH = Work(ActionKind.TOOL_CALL, "search", quota="search", service_s=1.0)
ROLLOUT = Rollout("r", "job", "g", "task", "", 200, 0.0, RESET, (Turn(Generation(1.0), (STEP,)),), (SUITE, JUDGE))
CLUSTER = Cluster(
    cpu=(CpuNodes(2, 8, memory_mb=32_000, numa_nodes=2),),
    gpu=(GpuNodes(1, 4),),
    models=(Model("judge", 1, 1.0, 5.0, slots=4), Model("teacher", 2, 1.0, 5.0)),
    quotas=(Quota("search", 10, 5.0, 20.0),),
)
KEY = ActionKey("job", "a")


@pytest.mark.parametrize(
    ("work", "units"),
    [
        # What it keeps, and the largest peak of its commands.
        (RESET, {CPU: 1, MEMORY: rounded_up(200 + 300)}),
        (STEP, {CPU: 1}),
        # Its memory is given at the gate of its node.
        (SUITE, {CPU: 1}),
        # With 4 parts to a GPU a slot of a judge is one of them, and a teacher's two GPUs are eight.
        (JUDGE, {GPU: 1}),
        (Work(ActionKind.REWARD, "teacher", service="teacher", service_s=1.0), {GPU: 8}),
        (SEARCH, {"calls": 1}),
    ],
    ids=["sandbox", "its command", "command outside", "call of a judge", "call of a teacher", "call of an API"],
)
def test_the_fewest_units_that_an_action_asks_for(work: Work, units: dict[str, int]) -> None:
    assert RequestBook(CLUSTER).action(KEY, work, ROLLOUT).demand.minimum() == units


def test_alike_requests_share_their_demand() -> None:
    book = RequestBook(CLUSTER)
    first, second = (book.action(ActionKey("job", name), STEP, ROLLOUT) for name in ("a", "b"))
    assert first.demand is second.demand


@pytest.mark.parametrize(("memory_mb", "rounded"), [(0, 0), (7, 7), (9, 10), (500, 512), (900, 1024), (1100, 1280)])
def test_memory_is_rounded_up_to_three_binary_digits(memory_mb: int, rounded: int) -> None:
    assert rounded_up(memory_mb) == rounded


def test_every_machine_has_a_manager_and_all_cores_are_shared() -> None:
    scenario = Scenario("w", Mode.ONESHOT, 1, CLUSTER, (ScenarioJob("job"),), (ROLLOUT,), 1)
    joined = {event.manager_id: event for event in join_all(scenario) if isinstance(event, ManagerJoined)}
    assert set(joined) == {"cpu-0", "cpu-1", "gpu-0", "api/search"}
    node, (service,) = joined["cpu-0"].node, joined["cpu-0"].services
    assert service.shared == {CPU: 8}
    assert ([len(numa) for numa in node.numa_cores], node.capacity) == ([4, 4], {MEMORY: 32_000})
    assert (joined["gpu-0"].node.capacity, joined["api/search"].node.quotas["calls"].burst) == ({GPU: 16}, 20)


def test_lane_changes_are_charged_on_average() -> None:
    model = OverheadModel(dispatch_s=0.001, commit_s=0.002, sandbox_s=0.02, switch_s=0.01)
    assert model.before_start_s(0, 0, in_sandbox=False) == pytest.approx(0.003)
    assert model.before_start_s(50, 100, in_sandbox=False) == pytest.approx(0.008)
    assert model.before_start_s(50, 100, in_sandbox=True) == pytest.approx(0.028)


class Started:
    """Notes which tasks were started."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []

    def __call__(self, task: Task, dispatch: Dispatch) -> None:
        self.tasks.append(task)


def dispatch_of(request: ActionRequest) -> Dispatch:
    """The core's word that an action may start."""
    return Dispatch(NamedManager("cpu-0"), request, Token(1, 1), 1, "sandbox", {CPU: 1}, (), 60.0, "")


@pytest.mark.parametrize("ready_first", [True, False])
def test_an_attempt_starts_once_both_sides_are_ready(ready_first: bool) -> None:
    started = Started()
    attempts = Attempts(started)
    request = RequestBook(CLUSTER).action(KEY, RESET, ROLLOUT)
    attempts.submit(KEY, None)
    action = attempts.find(KEY)
    assert action is not None
    task = Task(1, LiveRollout(ROLLOUT, 0.0), RESET, 0.0)
    if ready_first:
        attempts.ready(action, task)
        assert started.tasks == []
        attempts.dispatched(dispatch_of(request))
    else:
        attempts.dispatched(dispatch_of(request))
        assert started.tasks == []
        attempts.ready(action, task)
    assert started.tasks == [task]


WELL = EndFacts()


class OneNode:
    """A node of 1,000 MB with three sandboxes that rest: each demands 300 MB and holds 200."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.refused: list[str] = []
        self.now, self.wakes = 0.0, list[float]()
        cluster = Cluster(cpu=(CpuNodes(1, 8, memory_mb=1_000),))
        self.memory = GatedMemory(
            cluster,
            lambda task, dispatch: self.started.append(f"{task.rollout.name} {task.work.label}"),
            lambda task, dispatch: self.refused.append(f"{task.rollout.name} {task.work.label}"),
            now=lambda: self.now,
            wake_at=self.wakes.append,
        )
        self.book = RequestBook(cluster)
        self.lives = [LiveRollout(replace(ROLLOUT, name=name), 0.0, node="cpu-0") for name in ("a", "b", "c")]
        for live in self.lives:
            assert self.end(self.enter(live, RESET)) == 200
        self.started.clear()

    def enter(self, live: LiveRollout, work: Work) -> Task:
        """Has a command dispatched."""
        task = Task(1, live, work, 0.0)
        request = self.book.action(KEY, work, live.rollout)
        self.memory.enter(task, replace(dispatch_of(request), resources={CPU: 1, MEMORY: 300}))
        return task

    def end(self, task: Task, facts: EndFacts = WELL) -> int:
        """Ends it."""
        return self.memory.leave(task, facts)


def test_a_command_waits_while_its_sandbox_cannot_have_its_whole_demand() -> None:
    node = OneNode()
    first = node.enter(node.lives[0], STEP)
    second = node.enter(node.lives[1], STEP)
    # With two at their demand, what is left would not do for any to end: a reward in a copy is as large again.
    assert node.started == ["a test"]
    node.now = 5.0
    node.memory.woken()
    assert node.wakes == [1.0, 6.0], "it looks again while one waits"
    assert node.end(first) == 200
    assert node.started == ["a test", "b test"]
    assert node.end(second) == 200


def test_a_sandbox_that_goes_lets_others_run() -> None:
    node = OneNode()
    node.enter(node.lives[0], STEP)
    node.enter(node.lives[1], STEP)
    node.memory.gone(node.lives[2])
    assert node.started == ["a test", "b test"]


def test_a_sandbox_whose_reset_failed_holds_nothing() -> None:
    node = OneNode()
    node.memory.gone(node.lives[2])
    reset = node.enter(LiveRollout(replace(ROLLOUT, name="d"), 0.0), RESET)
    node.enter(node.lives[0], STEP)
    assert node.started == ["d reset"]
    assert node.end(reset, EndFacts(failed=True)) == 0
    node.enter(node.lives[1], STEP)
    assert node.started == ["d reset", "a test", "b test"]


def test_a_reward_in_a_copy_that_would_wait_for_ever_is_refused() -> None:
    node = OneNode()
    node.enter(node.lives[0], SUITE)
    assert (node.started, node.refused) == ([], [])
    node.enter(node.lives[1], SUITE)
    node.enter(node.lives[2], SUITE)
    assert (node.started, node.refused[0]) == ([], "a suite")
