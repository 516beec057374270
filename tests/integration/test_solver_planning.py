"""Planning beside the loop: what competes for nothing does not wait for the solver, whose answer is placed as it comes.

The planner's solver runs in a real thread. Tests hold it at a gate to look at what happens meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.plan import Plan
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings, Proposal
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.question.instance import PlanningInstance
from callsheet.scheduler.planner.round.snapshot import Snapshot
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from callsheet.scheduler.planner.solvers.solve import Solution
from callsheet.scheduler.service.planning import SolverPlanning

from tests.support.core_requests import action_request, elastic, fixed
from tests.support.core_world import CoreWorld, node, service

PATIENCE = 60.0


class GatedPlanner(ElasticPlanner):
    """An elastic planner whose solver waits for its gate."""

    def __init__(self) -> None:
        super().__init__(ElasticSettings(budget=Budget(seconds=0.05)))
        self.gate = threading.Event()
        self.solved = 0
        self.broken = False

    def propose(
        self, state: SchedulerState, now: float, *, solving: Snapshot | None = None, ask: bool = True
    ) -> Proposal:
        """Proposes unless it is broken."""
        if self.broken:
            raise ZeroDivisionError("made to fail")
        return super().propose(state, now, solving=solving, ask=ask)

    def solve(self, instance: PlanningInstance) -> Solution:
        """Solves once the gate is open, unless it is broken."""
        assert self.gate.wait(PATIENCE), "nobody opened the gate"
        if self.broken:
            raise ZeroDivisionError("made to fail")
        self.solved += 1
        return super().solve(instance)


class Beside:
    """A world whose rounds are planned by a `SolverPlanning` with its task running."""

    def __init__(self, solver_timeout_s: float) -> None:
        self.planner = GatedPlanner()
        self.planning = SolverPlanning(
            self.planner, FirstComePlanner(), pause_s=0.001, solver_timeout_s=solver_timeout_s
        )
        self.world = CoreWorld(planner=self.planning)
        self.world.job()
        self._woken = anyio.Event()

    def wake(self) -> None:
        """What the loop would be told."""
        self._woken.set()

    async def woken(self) -> None:
        """Waits until the loop would be woken."""
        with anyio.fail_after(PATIENCE):
            await self._woken.wait()
        self._woken = anyio.Event()

    def plan(self) -> list[str]:
        """Plans until no round asks for another one; returns the actions assigned."""
        plans: list[Plan] = [self.world.plan()]
        while plans[-1].truncated:
            plans.append(self.world.plan())
        return [each.key.action_id for plan in plans for each in plan.assignments]


@asynccontextmanager
async def beside(*, solver_timeout_s: float = PATIENCE) -> AsyncIterator[Beside]:
    """A world, with its planning task while the block lasts."""
    made = Beside(solver_timeout_s)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.planning.run, made.wake)
        try:
            yield made
        finally:
            made.planner.gate.set()
            tasks.cancel_scope.cancel()


def submit_contested(world: CoreWorld, count: int = 9) -> None:
    """Two classes of elastic actions that want more cores than there are, in widths that leave something to decide."""
    for index in range(count):
        world.submit(action_request(f"x{index}", demand=elastic(1, 4), expected=5.0))
        world.submit(action_request(f"y{index}", demand=elastic(3, 6), expected=9.0, weight=3.0))


async def until(planned: Callable[[], bool], made: Beside) -> None:
    """Plans at each wake until something holds."""
    while not planned():
        await made.woken()
        made.plan()


async def test_the_solver_answers_from_its_thread() -> None:
    async with beside() as made:
        manager = made.world.manager(cores=8)
        submit_contested(made.world)
        assert made.plan() == [], "a question of this size is for the solver"
        made.planner.gate.set()
        await until(lambda: manager.free["cpu"] == 0, made)
        assert made.planner.solved >= 1


async def test_what_does_not_compete_goes_on_while_the_solver_works() -> None:
    async with beside() as made:
        world = made.world
        tests = world.manager("tests", service("tests", [ActionKind.TOOL_CALL]), cores=8)
        engine = world.manager("engine", service("engine", [ActionKind.GENERATE], slots=2), on=node("engine", 0))
        submit_contested(world)
        assert made.plan() == []
        for index in range(3):
            world.submit(action_request(f"g{index}", ActionKind.GENERATE))
            made.plan()
        assert [engine.has(f"g{index}") for index in range(3)] == [True, True, False]
        world.submit(action_request("late", demand=fixed(cpu=1)))
        assert made.plan() == [], "it wants the cores that the question is about"
        made.planner.gate.set()
        await until(lambda: tests.free["cpu"] == 0, made)


async def test_an_answer_is_placed_on_the_fleet_as_it_is_when_it_comes() -> None:
    async with beside() as made:
        world = made.world
        gone, left = world.manager("gone", cores=8), world.manager("left", cores=8)
        submit_contested(world)
        made.plan()
        for index in range(4):
            world.cancel(f"x{index}")
            world.cancel(f"y{index}")
        gone.disconnect()
        made.planner.gate.set()
        await until(lambda: left.free["cpu"] == 0, made)
        assert gone.free["cpu"] == 8
        assert not any(left.has(f"{name}{index}") for name in "xy" for index in range(4))


async def test_the_plain_planner_plans_the_rounds_in_which_the_planner_fails() -> None:
    async with beside() as made:
        made.world.manager(cores=8)
        submit_contested(made.world, count=1)
        made.planner.broken = True
        assert sorted(made.plan()) == ["x0", "y0"]
        made.planner.broken = False
        made.world.submit(action_request("after"))
        assert made.plan() == ["after"]


async def test_the_plain_planner_plans_where_the_solver_fails() -> None:
    async with beside() as made:
        manager = made.world.manager(cores=8)
        submit_contested(made.world)
        assert made.plan() == []
        made.planner.broken = True
        made.planner.gate.set()
        await made.woken()
        made.planner.broken = False
        made.world.plan()
        assert manager.free["cpu"] == 0


async def test_a_solver_that_does_not_come_back_is_given_up() -> None:
    async with beside(solver_timeout_s=0.01) as made:
        manager = made.world.manager(cores=8)
        submit_contested(made.world)
        assert made.plan() == []
        await made.woken()
        made.plan()
        assert manager.free["cpu"] == 0
        assert made.planner.solved == 0


def test_a_scheduler_starts_without_or_tools() -> None:
    program = "import sys, callsheet.scheduler.service.server; print({'ortools', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "set()\n"
