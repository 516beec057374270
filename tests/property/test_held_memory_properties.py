"""Memory by need under both planners, through crashes: nodes book what live sandboxes hold, and proposals fit.

Managers break off, die and come back; schedulers are restarted; sandboxes hold whatever they do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import ceil

import pytest
from callsheet.scheduler.core.state.held_memory import LEAST_LIVES
from callsheet.scheduler.core.words.model import MEMORY, ActionKind
from callsheet.scheduler.planner.elastic import ElasticPlanner
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.protocol import ReviewingPlanner
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core_managers import FaithfulManager
from tests.support.core_requests import action_request, kept
from tests.support.core_world import CoreWorld, FakeManager, Stream, node, service

DEMAND, CAPACITY = 256, 900
PLANNERS: dict[str, Callable[[], ReviewingPlanner]] = {
    "first come": FirstComePlanner,
    "elastic": lambda: ElasticPlanner(predictors=Predictors()),
}
MOVES = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "step", "end", "end", "close", "break", "die", "restart"]),
        st.integers(0, 9),
        st.sampled_from([0, 1, 40, 200, 255, 300]),
    ),
    min_size=5,
    max_size=60,
)


class _System:
    """One manager on one node, and trajectories that come and go."""

    def __init__(self, planner: ReviewingPlanner) -> None:
        self.world = CoreWorld(planner=planner)
        self.world.job()
        for _ in range(LEAST_LIVES):
            self.world.state.held_memory.learn("job", "", 40)
        hosted = (service("work", [ActionKind.ENV_RESET, ActionKind.ENV_STEP]),)
        fake = FakeManager(self.world, "m", node("n", 16, memory=CAPACITY), hosted)
        self.manager = FaithfulManager(fake, Counter())
        self.manager.register()
        self.opened: list[str] = []
        self.steps = 0

    def move(self, what: str, number: int, held_mib: int) -> None:
        """One thing happens; numbers choose among what there is."""
        manager, some = self.manager, self.opened[number % len(self.opened)] if self.opened else ""
        attempts = sorted(manager.received | manager.running)
        match what:
            case "begin":
                name = f"t{self.steps}"
                self.opened.append(name)
                self.world.trajectory(name)
                self.submit(ActionKind.ENV_RESET, name, kept(start_cpu=1, memory=DEMAND))
            case "step" if some:
                self.submit(ActionKind.ENV_STEP, some, kept())
            case "end" if attempts:
                token = attempts[number % len(attempts)]
                if token in manager.received:
                    manager.start(token)
                manager.end(token, held_mib=held_mib)
            case "close" if some:
                self.opened.remove(some)
                self.world.close_trajectory(some)
            case "break":
                manager.break_stream(lose_dispatches=number % 2 == 0)
                # It came to know better what a resting sandbox holds.
                manager.held_mib.update(dict.fromkeys(list(manager.sandboxes)[:number], held_mib))
            case "die":
                manager.restart()
            case "restart":
                self.world = self.world.restart()
                manager.connected, manager.fake.world, manager.fake.stream = False, self.world, Stream()
            case _:
                pass
        if not manager.connected:
            manager.register()
        self.plan()

    def submit(self, kind: ActionKind, trajectory_id: str, demand: object) -> None:
        self.steps += 1
        request = action_request(f"a{self.steps}", kind, trajectory_id, demand=demand)  # type: ignore[arg-type]
        self.world.submit(request)

    def plan(self) -> None:
        """Plans until nothing more is proposed: the core takes whatever is."""
        self.manager.read()
        for _ in range(30):
            plan = self.world.plan()
            for each in plan.assignments:
                assert self.world.live(each.key).attempt is not None, f"{each} was refused"
            self.manager.read()
            if not plan.truncated:
                return
        pytest.fail("it proposes for ever")

    def check(self) -> None:
        """The node books what the manager knows to be held, and what is being made."""
        held = [self.manager.held_mib.get(place, 0) for place in self.manager.sandboxes]
        live = sum(mib + ceil((DEMAND - mib) / 5) if 0 < mib < DEMAND else DEMAND for mib in held)
        making = [
            attempt.units[MEMORY]
            for attempt in self.world.state.managers["m"].attempts.values()
            if attempt.action.request.kind is ActionKind.ENV_RESET
        ]
        assert all(0 < mib <= DEMAND for mib in making)
        assert self.world.state.nodes["n"].granted.get(MEMORY, 0) == live + sum(making)


@given(st.sampled_from(sorted(PLANNERS)), MOVES)
@settings(max_examples=60)
def test_a_node_books_what_its_live_sandboxes_hold(planner: str, moves: list[tuple[str, int, int]]) -> None:
    system = _System(PLANNERS[planner]())
    for what, number, held_mib in moves:
        system.move(what, number, held_mib)
        system.check()
    for name in list(system.opened):
        system.world.close_trajectory(name)
        system.manager.read()
    for token in sorted(system.manager.received | system.manager.running):
        if token in system.manager.received:
            system.manager.start(token)
        system.manager.end(token)
    assert not system.world.state.nodes["n"].granted
