"""Deadlines of the manager runtime against the obvious way to keep them."""

from __future__ import annotations

import math

from callsheet.managers.deadlines import Deadlines
from hypothesis import given
from hypothesis import strategies as st

Keys = st.integers(0, 3)
Times = st.integers(0, 9).map(float)
Operations = st.lists(
    st.one_of(
        st.tuples(st.just("set"), Keys, Times),
        st.tuples(st.just("discard"), Keys, Times),
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
        elif name == "discard":
            model.pop(key, None)
            deadlines.discard(key)
        else:
            due = {known for known, other in model.items() if other <= at}
            popped = deadlines.pop_due(at)
            assert set(popped) == due
            assert [model[known] for known in popped] == sorted(model[known] for known in popped)
            model = {known: other for known, other in model.items() if known not in due}
            wakes_at = min(model.values(), default=math.inf)
        assert len(deadlines) == len(model)
        # Who sleeps until the first deadline, and is told of earlier ones, never sleeps past one.
        assert wakes_at <= min(model.values(), default=math.inf)
        assert deadlines.next_at() == min(model.values(), default=None)
