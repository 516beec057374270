"""No trajectory or group opens twice, whatever is closed, lost, cancelled and forgotten, over restarts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from callsheet.scheduler.core.words.model import ActionKind, GroupRequest, Opening, TrajectoryEnd, TrajectoryRequest
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.core.work.trajectories import REDUNDANT
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from tests.support.closed_view import closed_view
from tests.support.core_requests import action_request, fixed, trajectory_request
from tests.support.core_world import SETTINGS, CoreWorld, FakeManager, Stream
from tests.support.samples import examples

KEPT = 8
KEPT_S = 50.0
GROUPS = {name: GroupRequest(name, 3, quorum) for name, quorum in (("g1", 3), ("g2", 2), ("g3", 1))}
# Where each trajectory belongs is of its id, so that a spec is the same each time.
IDS = [f"t{number}{group}" for number in range(5) for group in ("", "g1", "g2", "g3")]


def request_of(trajectory_id: str) -> TrajectoryRequest:
    """A trajectory, in the group that its id names."""
    return trajectory_request(trajectory_id, group=GROUPS.get(trajectory_id[2:]))


def refusal_of(ask: Callable[[], object]) -> RefusedError | None:
    """What is refused, if it is."""
    try:
        ask()
    except RefusedError as refusal:
        return refusal
    return None


class ClosedRetention(RuleBasedStateMachine):
    """One job whose trajectories come and go, and a scheduler that keeps little and restarts."""

    @initialize()
    def begin(self) -> None:
        """Opens the job."""
        self.world = CoreWorld(settings=replace(SETTINGS, finished_actions=KEPT, finished_actions_s=KEPT_S))
        self.manager: FakeManager = self.world.manager()
        self.opened: set[str] = set()
        self.ends: dict[str, TrajectoryEnd] = {}
        self.numbers = 0
        self.world.job()

    @property
    def job(self) -> dict[str, object]:
        """What the scheduler knows."""
        return closed_view(self.world.state.jobs["job"])

    @rule(names=st.lists(st.sampled_from(IDS), min_size=1, max_size=4))
    def open(self, names: list[str]) -> None:
        """Opens trajectories, for the first time or again."""
        for name in names:
            found: list[Opening] = []
            refusal = refusal_of(lambda: found.append(self.world.trajectory(request_of(name)).opening))  # noqa: B023
            if refusal is not None:
                assert refusal.forgotten or refusal.code is RefusalCode.FAILED_PRECONDITION, str(refusal)
                continue
            closed = self.world.state.jobs["job"].closed_trajectories.get(name)
            # A group that has its quorum closes another member as it is opened.
            redundant = closed is not None and closed.reason == REDUNDANT
            known = found != [Opening.CREATED]
            assert (name in self.opened) == known or redundant, f"{name}: {found}"
            self.opened.add(name)

    @rule(name=st.sampled_from(IDS), end=st.sampled_from(TrajectoryEnd))
    def close(self, name: str, end: TrajectoryEnd) -> None:
        """Closes one; one that was closed can be closed again as it was, and only so."""
        refusal = refusal_of(lambda: self.world.close_trajectory(name, end))
        if refusal is None:
            assert self.ends.setdefault(name, end) is end
        else:
            assert (refusal.code is RefusalCode.NOT_FOUND) == (name not in self.opened), str(refusal)

    @rule(name=st.sampled_from(IDS), starts=st.booleans())
    def act(self, name: str, starts: bool) -> None:
        """An action in one, that waits or runs on."""
        self.numbers += 1
        demand = fixed(cpu=1 if starts else 64)
        request = action_request(f"a{self.numbers}", ActionKind.GENERATE, name, demand=demand, wait=True)
        if refusal_of(lambda: self.world.submit(request)) is None:
            self.world.plan()

    @rule(group=st.sampled_from(sorted(GROUPS)))
    def cancel_group(self, group: str) -> None:
        """Gives a group up."""
        refusal = refusal_of(lambda: self.world.cancel_work(group))
        if refusal is not None:
            assert refusal.code is RefusalCode.NOT_FOUND
            assert not any(name.endswith(group) for name in self.opened)

    @rule(seconds=st.sampled_from([1.0, 10.0, 30.0, 60.0]))
    def wait(self, seconds: float) -> None:
        """Lets time pass."""
        self.manager.live(seconds)

    @rule(away=st.sampled_from([0.0, 1_000.0]))
    def restart(self, away: float) -> None:
        """The scheduler is killed, and another one knows the same."""
        before = self.job
        self.world.now += away
        self.world = self.world.restart()
        assert self.job == before
        self.manager.world, self.manager.stream = self.world, Stream()
        self.manager.join()

    @invariant()
    def all_is_known_and_little_is_kept(self) -> None:
        """Beyond the bound something goes within the next step; what a group needs stays until it is over."""
        self.world.wait(0.0)
        state, job = self.world.state, self.world.state.jobs["job"]
        assert state.finished_actions + state.closed_trajectories <= KEPT
        for name in self.opened - job.trajectory_specs.keys():
            assert job.forgotten.recall_trajectory(name) is not None, f"{name} is neither kept nor forgotten"
        assert job.trajectory_specs.keys() <= self.opened
        rows = {trajectory_id for _, trajectory_id in self.world.journal.trajectories}
        assert rows == job.trajectory_specs.keys()

    def teardown(self) -> None:
        """In the end all is closed, and nothing but entries is left."""
        if not hasattr(self, "world"):
            return
        self.world.cancel_work()
        self.manager.live(SETTINGS.cancel_grace + 1.0)
        self.world.wait(3 * KEPT_S)
        job = self.world.state.jobs["job"]
        assert (job.trajectory_specs, job.groups, job.closing, len(job.closed)) == ({}, {}, {}, 0)
        assert (self.world.state.finished_bytes, self.world.journal.trajectories) == (0, {})


@pytest.mark.timeout(120)
def test_no_trajectory_or_group_opens_twice() -> None:
    run_state_machine_as_test(ClosedRetention, settings=settings(max_examples=examples(60), stateful_step_count=40))
