"""Whatever happens, a job costs what its trajectories and its actions without one do, and a restart forgets nothing."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import count

import pytest
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.commands import Dispatch
from callsheet.scheduler.core.words.costs import Cost
from callsheet.scheduler.core.words.model import ActionKind, FailureKind, Token, TrajectoryEnd
from callsheet.scheduler.core.words.refusals import RefusedError
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core_requests import action_request, fixed, kept
from tests.support.core_world import SETTINGS, CoreWorld, Stream
from tests.support.samples import examples

CALLS = "calls:search"
ALONE = ""
TRAJECTORIES = ("t0", "t1")
STEPS = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from([ALONE, *TRAJECTORIES]), st.sampled_from([4, 2, 3])),
    st.tuples(st.just("end"), st.integers(0, 5), st.sampled_from([0.25, 1.0, 3.5]), st.sampled_from(["", "", "INFRA"])),
    st.tuples(st.just("rest"), st.sampled_from([0.5, 4.0])),
    st.tuples(st.just("cancel"), st.integers(0, 5)),
    st.tuples(st.just("close"), st.sampled_from(TRAJECTORIES)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("lose")),
)


class Books:
    """A world and its one manager; what ends tell of calls is counted beside it, by trajectory."""

    def __init__(self) -> None:
        self.world = CoreWorld()
        self.manager = self.world.manager(memory=1 << 20, cores=64)
        self.world.job()
        for name in TRAJECTORIES:
            self.world.trajectory(name)
        self.numbers = count()
        self.told: Counter[str] = Counter()
        self.held: dict[Token, Dispatch] = {}

    def look(self) -> None:
        """Takes what was dispatched."""
        self.world.plan()
        for command in self.manager.stream.sent:
            if isinstance(command, Dispatch):
                self.held.setdefault(command.token, self.manager.start(command))
        self.manager.stream.sent.clear()

    def submit(self, trajectory_id: str, kind: int) -> None:
        wanted = ActionKind(kind) if trajectory_id else ActionKind.TOOL_CALL
        demand = kept(start_cpu=1, memory=1024) if wanted is ActionKind.ENV_RESET else fixed(cpu=1)
        # There may be no sandbox, or the trajectory is closed.
        with suppress(RefusedError):
            self.world.submit(action_request(f"a{next(self.numbers)}", wanted, trajectory_id, demand=demand))
        self.look()

    def end(self, index: int, amount: float, failure: str) -> None:
        if not self.held:
            return
        grant = self.held.pop(sorted(self.held)[index % len(self.held)])
        failed = events.AttemptFailed(FailureKind[failure], "made_to_fail") if failure else None
        self.manager.end(grant, failed, cost=Cost({"cpu": amount}, {CALLS: amount}))
        self.told[grant.request.trajectory_id] += amount  # type: ignore[assignment]
        self.look()

    def rest(self, seconds: float) -> None:
        self.manager.live(seconds)
        self.look()

    def cancel(self, index: int) -> None:
        if self.held:
            grant = self.held[sorted(self.held)[index % len(self.held)]]
            if grant.request.key in {each.action.key for each in self.world.state.attempts.values()}:
                self.world.cancel(grant.request.key)
        self.look()

    def close(self, trajectory_id: str) -> None:
        if trajectory_id in self.world.state.jobs["job"].trajectories:
            self.world.close_trajectory(trajectory_id, TrajectoryEnd.ABANDONED)
        self.look()

    def restart(self) -> None:
        before, after = self.world, self.world.restart()
        assert costs(after) == costs(before)
        self.world = self.manager.world = after
        self.manager.stream = Stream()
        sandboxes = [each.sandbox for each in before.state.jobs["job"].trajectories.values() if each.sandbox_id]
        self.manager.join(running=map(self.manager.running, self.held.values()), sandboxes=sandboxes)
        self.look()

    def lose(self) -> None:
        self.manager.disconnect()
        self.world.wait(SETTINGS.manager_lease + 1.0)
        self.held.clear()
        self.manager.join(incarnation=f"after {next(self.numbers)}")
        self.look()

    def check(self) -> None:
        """Compares the core's sums with what was told."""
        of_job, of_trajectories = costs(self.world)
        for name, cost in of_trajectories.items():
            assert cost.used.get(CALLS, 0.0) == pytest.approx(self.told[name])
        assert of_job.used.get(CALLS, 0.0) == pytest.approx(sum(self.told.values()))
        known = sum(cost.held.get("memory", 0.0) for cost in of_trajectories.values())
        assert of_job.held.get("memory", 0.0) == pytest.approx(known), "nothing but sandboxes has memory"


def costs(world: CoreWorld) -> tuple[Cost, dict[str, Cost]]:
    """The costs of the job and of each trajectory until now."""
    job = world.state.jobs["job"]
    now = world.now
    still_open = {name: each.account.until(now) for name, each in job.trajectories.items()}
    return job.account.until(now), still_open | {name: each.cost for name, each in job.closed_trajectories.items()}


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(STEPS, max_size=30))
def test_a_job_costs_what_is_under_it(steps: list[tuple[object, ...]]) -> None:
    books = Books()
    for name, *arguments in steps:
        getattr(books, str(name))(*arguments)
        books.check()
