"""ARL-Tangram's greedy eviction, on instances worked out by hand."""

from __future__ import annotations

from callsheet.benchmarks.simulator.policies.tangram import Profile, Release, choose_widths

LONG = Profile(100.0, parallel_fraction=1.0, max_width=8)
SHORT = Profile(1.0)


def test_the_last_candidate_makes_way_where_cores_come_back_soon() -> None:
    """On two cores the long one takes 50 s instead of 100; the short one waits 2 s for a core of a running command."""
    assert choose_widths([LONG, SHORT], [], [Release(2.0, 1)], free=2, depth=8) == [2]


def test_it_stays_where_no_core_comes_back_soon() -> None:
    """Apart they take 100 + 1 s; one after the other 55 + (55 + 1) s."""
    partly = Profile(100.0, parallel_fraction=0.9, max_width=8)
    assert choose_widths([partly, SHORT], [], [Release(1_000.0, 1)], free=2, depth=8) == [1, 1]


def test_those_behind_count() -> None:
    """The core that comes back after 2 s is worth an eviction only while nobody else waits for it."""
    assert choose_widths([LONG, SHORT], [Profile(60.0)] * 2, [Release(2.0, 1)], free=2, depth=8) == [1, 1]


def test_evictions_end_at_the_first_that_does_not_pay() -> None:
    candidates = [LONG, SHORT, SHORT, SHORT]
    assert choose_widths(candidates, [], [Release(0.5, 3)], free=4, depth=1) == [2, 1, 1]
    assert choose_widths(candidates, [], [Release(0.5, 3)], free=4, depth=8) == [4]


def test_a_wide_candidate_alone_takes_what_is_free() -> None:
    assert choose_widths([LONG], [SHORT], [], free=3, depth=8) == [3]
