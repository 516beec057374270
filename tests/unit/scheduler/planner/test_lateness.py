"""When an action has waited too long, beside what waits with it."""

from __future__ import annotations

from math import inf

import pytest
from callsheet.scheduler.core.state.entities import Action, Job
from callsheet.scheduler.planner.round.lateness import hold_after_s, late_after_s, late_members, longest_wait_s

from tests.support.core_requests import action_request, job_request

JOB = Job(job_request())


def waiting(*since: float, retried: tuple[int, ...] = ()) -> list[Action]:
    """Members of a class in their order, and since when they wait; some have been tried before."""
    return [
        Action(action_request(f"a{number}"), JOB, None, number, 0.0, at, attempts=int(number in retried))
        for number, at in enumerate(since)
    ]


@pytest.mark.parametrize(
    ("backlog", "late"),
    [
        (0.0, 10.0),  # nothing else waits: its duration divided by the ageing
        (4.0, 10.0),
        (30.0, 60.0),  # nobody is late before all could have been served twice
        (1000.0, 200.0),  # but for an endless overload
    ],
)
def test_late_is_who_waited_for_long_beside_duration_and_backlog(backlog: float, late: float) -> None:
    assert late_after_s(2.0, 0.2, backlog) == late


def test_without_ageing_nobody_is_ever_late() -> None:
    assert late_after_s(2.0, 0.0, 0.0) == inf


@pytest.mark.parametrize(("backlog", "held"), [(0.0, 5.0), (10.0, 40.0), (1000.0, 200.0)])
def test_a_node_is_held_once_all_could_have_been_served_four_times(backlog: float, held: float) -> None:
    assert hold_after_s(5.0, backlog) == held


def test_members_are_late_in_their_order() -> None:
    members = waiting(0.0, 10.0, 20.0, 30.0)
    assert [late_members(members, late_after, now=50.0) for late_after in (60.0, 35.0, 25.0, 5.0)] == [0, 2, 3, 4]
    assert longest_wait_s(members, now=50.0) == 50.0
    assert (late_members([], 0.0, now=50.0), longest_wait_s([], now=50.0)) == (0, 0.0)


def test_those_behind_a_retried_one_that_waits_anew_are_as_late_as_before() -> None:
    members = waiting(49.0, 10.0, 48.0, 30.0, 40.0, retried=(0, 2))
    assert late_members(members, 35.0, now=50.0) == 2
    assert late_members(members, 15.0, now=50.0) == 4
    assert longest_wait_s(members, now=50.0) == 40.0


def test_nobody_is_looked_at_behind_the_first_who_is_not_late() -> None:
    members = iter(waiting(0.0, 40.0, 45.0, 46.0))
    assert late_members(members, 30.0, now=50.0) == 1
    assert [action.queued_since for action in members] == [45.0, 46.0]
