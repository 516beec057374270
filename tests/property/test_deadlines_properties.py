"""Deadlines against the obvious way to keep them."""

from __future__ import annotations

import math

from callsheet.timing.deadlines import Deadlines
from hypothesis import given
from hypothesis import strategies as st

Keys = st.integers(0, 3)
Times = st.integers(0, 9).map(float)
Operations = st.lists(
    st.one_of(
        st.tuples(st.just("set"), Keys, Times),
        st.tuples(st.just("drop"), Keys, Times),
        st.tuples(st.just("pop"), Keys, Times),
    ),
    max_size=300,
)


@given(Operations)
def test_deadlines_behave_like_a_dictionary_that_is_searched(operations: list[tuple[str, int, float]]) -> None:
    deadlines: Deadlines[int] = Deadlines()
    model: dict[int, float] = {}
    wakes_at = math.inf
    for name, key, at in operations:
        if name == "set":
            model[key] = at
            if deadlines.set(key, at):
                wakes_at = min(model.values())
        elif name == "drop":
            model.pop(key, None)
            deadlines.drop(key)
        else:
            due = {known for known, other in model.items() if other <= at}
            popped = deadlines.pop_due(at)
            assert set(popped) == due
            assert [model[known] for known in popped] == sorted(model[known] for known in popped)
            model = {known: other for known, other in model.items() if known not in due}
            wakes_at = min(model.values(), default=math.inf)
        assert len(deadlines) == len(model)
        assert all(deadlines.get(each) == model.get(each) for each in range(4))
        # Who sleeps until the first deadline, and is told of earlier ones, never sleeps past one.
        assert wakes_at <= min(model.values(), default=math.inf)
        assert deadlines.next() == min(model.values(), default=None)


def test_deadlines_that_are_set_again_and_again_take_no_more_memory() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for time in range(20_000):
        deadlines.set("a", float(time))
    assert sum(len(shard.heap) for shard in deadlines._shards) < 200
    assert deadlines.pop_due(19_998.0) == []
    assert deadlines.pop_due(19_999.0) == ["a"]


def test_deadlines_that_are_dropped_leave_nothing_behind() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10_000):
        deadlines.set(number, float(number))
    for number in range(10_000):
        deadlines.drop(number)
    assert sum(len(shard.heap) for shard in deadlines._shards) < 200
