"""ARL-Tangram's search on small instances, against all possible sizes."""

from __future__ import annotations

from itertools import product

import pytest
from callsheet.benchmarks.simulator.policies.tangram import Profile, Release, choose_widths
from hypothesis import given
from hypothesis import strategies as st

PROFILES = st.builds(
    Profile,
    duration_s=st.floats(0.01, 100.0),
    parallel_fraction=st.floats(0.0, 1.0),
    max_width=st.integers(1, 6),
)
RELEASES = st.lists(st.builds(Release, in_s=st.floats(0.0, 50.0), cores=st.integers(1, 4)), max_size=4)


def best_sum(candidates: list[Profile], free: int) -> float:
    """Least sum of durations over all sizes that fit."""
    widths = product(*(range(1, min(candidate.max_width, free) + 1) for candidate in candidates))
    return min(
        sum(candidate.on(width) for candidate, width in zip(candidates, sizes, strict=True))
        for sizes in widths
        if sum(sizes) <= free
    )


@given(st.lists(PROFILES, min_size=1, max_size=4), st.integers(0, 5), st.lists(PROFILES, max_size=4), RELEASES)
def test_sizes_fit_and_are_the_best_for_those_kept(
    candidates: list[Profile], spare: int, behind: list[Profile], releases: list[Release]
) -> None:
    free = len(candidates) + spare
    widths = choose_widths(candidates, behind, releases, free, depth=8)
    kept = candidates[: len(widths)]
    assert 1 <= len(widths) <= len(candidates)
    assert sum(widths) <= free
    assert all(1 <= width <= candidate.max_width for candidate, width in zip(kept, widths, strict=True))
    total = sum(candidate.on(width) for candidate, width in zip(kept, widths, strict=True))
    assert total == pytest.approx(best_sum(kept, free))


@given(st.lists(PROFILES, min_size=1, max_size=4), st.lists(PROFILES, max_size=4))
def test_without_depth_nobody_is_evicted(candidates: list[Profile], behind: list[Profile]) -> None:
    assert len(choose_widths(candidates, behind, [], len(candidates), depth=0)) == len(candidates)
