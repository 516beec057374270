"""Quotas: resources that use consumes and time brings back."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from callsheet.scheduler.core.machine import handle, next_deadline
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.state.quotas import TokenBucket
from callsheet.scheduler.core.words import events
from callsheet.scheduler.core.words.model import ActionKind, ActionState, FailureKind
from callsheet.scheduler.core.words.refusals import RefusedError
from callsheet.scheduler.core.words.registration import QuotaDescription, ServiceState
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.planner.round.review import WaitReason
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_requests import action_request, elastic, fixed, key_of
from tests.support.core_world import CoreWorld, FakeManager, Stream, node, service, world_with_job, world_with_manager

QUOTA_NODE = node("n", 4, quotas={"api": (2.0, 3)})


def world_with_quota() -> tuple[CoreWorld, FakeManager]:
    """A manager on a node that has 3 requests to an API, and 2 more every second."""
    return world_with_manager("m", on=QUOTA_NODE)


def call(world: CoreWorld, *names: str, requests: int = 1) -> None:
    """Submits calls that take requests from the quota, and plans."""
    world.submit(*(action_request(name, demand=fixed(api=requests)) for name in names), plan=True)


def test_a_quota_is_consumed_and_never_given_back() -> None:
    world, manager = world_with_quota()
    assert manager.free == {"cpu": 4, "memory": 4096, "api": 3}
    call(world, "a", "b", "c", "d")
    assert [manager.has(name) for name in ("a", "b", "c", "d")] == [True, True, True, False]
    for name in ("a", "b", "c"):
        manager.run(name)
    world.plan()
    assert (manager.has("d"), manager.grant("a").resources) == (False, {"api": 1})


def test_the_scheduler_wakes_when_a_waiting_action_could_have_enough() -> None:
    world, manager = world_with_quota()
    call(world, "first", requests=3)
    assert next_deadline(world.state) == world.state.timers.next(), "nothing waits"
    call(world, "two", requests=2)
    assert next_deadline(world.state) == pytest.approx(world.now + 1.0, abs=1e-4)
    world.wait(0.9)
    assert not manager.has("two")
    world.wait(0.2)
    assert manager.has("two")
    assert next_deadline(world.state) == world.state.timers.next()


def test_no_wake_up_while_something_else_is_what_lacks() -> None:
    world, manager = world_with_manager("m", service("api", [ActionKind.TOOL_CALL], slots=1), on=QUOTA_NODE)
    call(world, "a", "b")
    manager.start("a")
    assert next_deadline(world.state) == world.state.timers.next()
    assert at_once(explain_in_parts(world.state, world.live("b"), world.now, world.planner)).reason is WaitReason.SLOTS


def test_what_no_burst_allows_is_refused() -> None:
    world, _ = world_with_quota()
    with pytest.raises(RefusedError, match=r"more units than any node that serves it has \(3\)"):
        call(world, "greedy", requests=4)
    world.submit(action_request("patient", demand=fixed(api=4), wait=True), plan=True)
    assert next_deadline(world.state) == world.state.timers.next()


def test_an_elastic_demand_takes_no_more_than_there_is() -> None:
    world, manager = world_with_quota()
    call(world, "a", requests=2)
    world.submit(action_request("b", demand=elastic(1, 3, resource="api")), plan=True)
    assert manager.grant("b").resources == {"api": 1}


def test_every_attempt_consumes() -> None:
    world, manager = world_with_quota()
    call(world, "a", requests=2)
    manager.fail("a", FailureKind.QUOTA)
    world.wait(0.3)
    assert world.state_of("a") is ActionState.QUEUED
    world.wait(0.5)
    assert (manager.grant("a").attempt, manager.free["api"]) == (2, 0)


def test_waiting_for_a_quota_is_explained() -> None:
    world, _ = world_with_quota()
    call(world, "a", requests=3)
    call(world, "b", requests=2)
    explanation = at_once(explain_in_parts(world.state, world.live("b"), world.now, world.planner))
    assert explanation.reason is WaitReason.QUOTA
    assert explanation.sentence == "on n: 2 api needed, 0 there; enough in 1.0 s at the earliest"


def test_a_node_that_comes_back_has_no_more_than_it_would_have_had() -> None:
    world, manager = world_with_quota()
    call(world, "a", requests=3)
    manager.run("a")
    manager.join(incarnation="second")
    assert manager.free["api"] == 0
    world.wait(11.0)
    assert not world.state.nodes
    manager.join(incarnation="third")
    assert manager.free["api"] == 3


def test_other_limits_take_over_what_there_was() -> None:
    world, manager = world_with_quota()
    call(world, "a", requests=1)
    manager.disconnect()
    handle(world.state, [], world.now)
    manager.node = node("n", 4, quotas={"api": (2.0, 1)})
    manager.join(incarnation="second")
    assert manager.free["api"] == 1


def test_after_a_restart_a_quota_fills_from_nothing() -> None:
    world, manager = world_with_quota()
    call(world, "a", requests=3)
    grant = manager.start("a")
    restarted = world.restart()
    manager.world, manager.stream = restarted, Stream()
    restarted.now += 0.5
    manager.join([manager.running(grant)])
    assert manager.free == {"cpu": 4, "memory": 4096, "api": 1}
    manager.end(grant)
    assert manager.free["api"] == 1
    assert tuple(key_of("a")) in restarted.journal.outcomes


@given(
    st.floats(0.01, 1e4),
    st.integers(1, 1000),
    st.lists(st.tuples(st.floats(0.0, 10.0), st.integers(0, 1000)), max_size=30),
)
def test_no_window_of_time_sees_more_than_its_rate_and_one_burst(
    per_second: float, burst: int, steps: list[tuple[float, int]]
) -> None:
    start = now = 1.7e9
    bucket = TokenBucket(QuotaDescription(per_second, burst), float(burst), now)
    taken: list[tuple[float, int]] = []
    for wait, wanted in steps:
        now += wait
        bucket.refill(now)
        units = min(wanted, bucket.units)
        bucket.consume(units)
        taken.append((now, units))
        ready = bucket.enough_at(burst)
        assert ready >= now
        assert ready <= now + burst / per_second + 1e-3
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            window = taken[last][0] - taken[first][0]
            consumed = sum(units for _, units in taken[first : last + 1])
            # Times since the epoch are rounded to a quarter of a microsecond.
            assert consumed <= burst + per_second * (window + 1e-5) + 1e-6, f"from {taken[first][0] - start}"


SEARCH = service("search", [ActionKind.TOOL_CALL], demand={"api": 1})


def search(world: CoreWorld, *names: str, wait: bool = False, requests: int = 0, resource: str = "api") -> None:
    """Submits calls of the service that has a demand of its own, and plans."""
    demand = fixed(**{resource: requests}) if requests else None
    call_once = partial(action_request, kind=ActionKind.TOOL_CALL, service="search", demand=demand, wait=wait)
    world.submit(*map(call_once, names), plan=True)


def test_a_call_that_states_no_demand_takes_its_services() -> None:
    world, manager = world_with_manager("m", SEARCH, on=QUOTA_NODE)
    search(world, "a", "b", "c", "d")
    assert [manager.has(name) for name in ("a", "b", "c", "d")] == [True, True, True, False]
    assert manager.grant("a").resources == {"api": 1}


@pytest.mark.parametrize(
    ("resource", "requests", "granted"),
    [("api", 2, {"api": 2}), ("api", 1, {"api": 1}), ("cpu", 1, {"cpu": 1, "api": 1})],
)
def test_a_call_with_a_demand_of_its_own_keeps_it_and_passes_by_no_quota(
    resource: str, requests: int, granted: dict[str, int]
) -> None:
    world, manager = world_with_manager("m", SEARCH, on=QUOTA_NODE)
    search(world, "large", requests=requests, resource=resource)
    assert manager.grant("large").resources == granted


@pytest.mark.parametrize(("requests", "resource"), [(0, "api"), (1, "cpu")])
def test_calls_that_waited_for_their_service_take_its_demand_once_it_is_there(requests: int, resource: str) -> None:
    world = world_with_job()
    search(world, "a", "b", "c", "d", wait=True, requests=requests, resource=resource)
    manager = world.manager("m", SEARCH, on=QUOTA_NODE)
    world.plan()
    assert [manager.has(name) for name in ("a", "b", "c", "d")] == [True, True, True, False]


def test_what_calls_are_seen_to_take_is_booked_from_then_on() -> None:
    world, manager = world_with_manager(
        "m", service("search", [ActionKind.TOOL_CALL], demand={"api": 3}), on=QUOTA_NODE
    )
    search(world, "a")
    search(world, "of its own", requests=2)
    search(world, "b0", "b1", "b2")
    assert manager.grant("a").resources == {"api": 3}
    learned = ServiceState("search", 0.0, 0, demand={"api": 1})
    world.handle(events.ManagerHeartbeat("m", manager.stream, (learned,)))
    world.wait(1.5)
    manager.heartbeat()
    world.plan()
    assert (manager.grant("of its own").resources, manager.grant("b0").resources) == ({"api": 2}, {"api": 1})
    world.handle(events.ManagerHeartbeat("m", manager.stream, (replace(learned, demand={}),)))
    search(world, "later")
    world.wait(1.5)
    world.plan()
    assert manager.grant("later").resources == {"api": 1}, "nothing said is nothing new"


@pytest.mark.parametrize("restarts", [True, False], ids=["after a restart", "under one scheduler"])
@pytest.mark.parametrize("begun", [True, False], ids=["in backoff", "before its admission"])
def test_a_call_that_was_not_ready_takes_the_newest_demand_once_it_is(*, restarts: bool, begun: bool) -> None:
    world, manager = world_with_manager("m", SEARCH, on=QUOTA_NODE)
    world.trajectory("t")
    world.submit(action_request("a", ActionKind.TOOL_CALL, "t", service="search"))
    if begun:
        world.plan()
    grants = [manager.start("a")] if begun else []
    if restarts:
        manager.world = world = world.restart()
        manager.join(map(manager.running, grants))
    for grant in grants:
        manager.end(grant, events.AttemptFailed(FailureKind.INFRA, "made_to_fail"))
    world.handle(events.ManagerHeartbeat("m", manager.stream, (ServiceState("search", 0.0, 0, demand={"api": 2}),)))
    world.wait(3.0)
    world.plan()
    assert manager.grant("a").resources == {"api": 2}


def test_three_managers_of_one_node_share_its_quota() -> None:
    world = CoreWorld()
    managers = [world.manager(name, SEARCH, on=QUOTA_NODE) for name in ("m", "n", "o")]
    world.job()
    names = [f"call-{number}" for number in range(8)]
    search(world, *names)
    assert sum(manager.has(name) for manager in managers for name in names) == 3
