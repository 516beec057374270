"""Batches over random histories: each finished trajectory is acknowledged at most once, and none is lost."""

from __future__ import annotations

from callsheet.scheduler.core.jobs.batches import GROUP_IDLE_S
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import GroupRequest, TrajectoryEnd
from callsheet.scheduler.core.words.refusals import RefusedError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.support.core_requests import job_request, trajectory_request
from tests.support.core_world import CoreWorld

LEASE_S = 10.0
ENDS = st.sampled_from([TrajectoryEnd.ABANDONED, TrajectoryEnd.LOST, TrajectoryEnd.COMPLETED])


class Batches(RuleBasedStateMachine):
    """Trajectories finish in groups and alone, trainers take and settle, the scheduler restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.world = CoreWorld()
        self.world.job(job_request())
        self.numbers = 0
        self.finished: set[str] = set()
        self.trained: list[str] = []
        self.bounds: dict[str, tuple[int, int]] = {}

    def _open(self) -> list[str]:
        return sorted(self.world.state.jobs["job"].trajectories)

    def new_id(self) -> str:
        self.numbers += 1
        return f"{self.numbers:03d}"

    @rule(size=st.integers(1, 3), quorum=st.integers(1, 3))
    def open_group(self, size: int, quorum: int) -> None:
        group = GroupRequest(self.new_id(), size, min(quorum, size))
        for _ in range(size):
            self.world.trajectory(trajectory_request(self.new_id(), group=group))

    @rule()
    def open_one(self) -> None:
        self.world.trajectory(self.new_id())

    @precondition(lambda self: self._open())
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self._open()))
        self.world.finish(name)
        self.finished.add(name)

    @precondition(lambda self: self._open())
    @rule(data=st.data(), end=ENDS)
    def close(self, data: st.DataObject, end: TrajectoryEnd) -> None:
        self.world.close_trajectory(data.draw(st.sampled_from(self._open())), end)

    @rule(at_least=st.integers(1, 4), more=st.integers(0, 4))
    def take(self, at_least: int, more: int) -> None:
        name, at_most = self.new_id(), at_least + more
        self.world.take(name, at_least, at_most, lease_s=LEASE_S)
        self.bounds[name] = (at_least, at_most)

    @rule(size=st.integers(1, 2))
    def ask_and_leave(self, size: int) -> None:
        name = self.new_id()
        taker = self.world.take(name, size)
        taker.gone = True
        self.world.handle(events.BatchMissed("job", name, taker))
        assert name not in self.world.state.jobs["job"].buffer.batches

    @precondition(lambda self: self.world.state.jobs["job"].buffer.batches)
    @rule(data=st.data(), settlement=st.sampled_from(events.Settlement))
    def settle(self, data: st.DataObject, settlement: events.Settlement) -> None:
        buffer = self.world.state.jobs["job"].buffer
        batch = buffer.batches[data.draw(st.sampled_from(sorted(buffer.batches)))]
        members = [each.trajectory_id for each in buffer.members_of(batch)]
        self.world.settle(batch.batch_id, settlement)
        if settlement is events.Settlement.ACKNOWLEDGE:
            self.trained += members

    @rule()
    def acknowledge_too_late(self) -> None:
        for batch_id in list(self.world.state.jobs["job"].buffer.acknowledged):
            self.world.settle(batch_id)
        try:
            self.world.settle("never-taken")
        except RefusedError:
            return
        raise AssertionError("a batch that never was is acknowledged")

    @rule(seconds=st.sampled_from([1.0, LEASE_S, GROUP_IDLE_S]))
    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)

    @rule()
    def restart(self) -> None:
        self.world = self.world.restart()

    @invariant()
    def none_is_lost_nor_trained_on_twice(self) -> None:
        assert len(self.trained) == len(set(self.trained))
        buffer = self.world.state.jobs["job"].buffer
        there = {each.trajectory_id for bundle in buffer.bundles.values() for each in bundle.members}
        assert there == self.finished - set(self.trained)
        assert {key[1] for key in self.world.journal.buffered} == there

    @invariant()
    def batches_have_what_was_asked_for(self) -> None:
        buffer = self.world.state.jobs["job"].buffer
        for name, batch in buffer.batches.items():
            at_least, at_most = self.bounds[name]
            sizes = [len(buffer.bundles[key].members) for key in batch.keys]
            assert sum(sizes) >= at_least
            assert sum(sizes) <= at_most or sum(sizes[:-1]) < at_least

    @invariant()
    def groups_go_whole(self) -> None:
        buffer = self.world.state.jobs["job"].buffer
        for bundle in buffer.bundles.values():
            group = self.world.state.jobs["job"].groups.get(bundle.key[0])
            if bundle.batch_id and group is not None:
                assert not any(each in self.world.state.jobs["job"].trajectories for each in group.members)


def test_batches_under_random_histories() -> None:
    run_state_machine_as_test(Batches, settings=settings(max_examples=40, stateful_step_count=25, deadline=None))
