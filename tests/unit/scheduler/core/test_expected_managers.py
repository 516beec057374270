"""Actions for managers that were announced wait for them; after that the usual rule holds."""

from __future__ import annotations

import pytest
from callsheet.deploy.roles import expected_roles
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.state.scheduler_state import CoreSettings
from callsheet.scheduler.core.words.model import ActionKind, ActionState, FailureKind, Timeouts
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.planner.round.review import WaitReason
from hypothesis import given
from hypothesis import strategies as st

from tests.support.core_engines import offer
from tests.support.core_requests import action_request, fixed
from tests.support.core_world import CoreWorld, service
from tests.support.refusals import refusal

STANDARD = ("sandbox", "inference", "reward")
SANDBOX_KINDS = (ActionKind.ENV_RESET, ActionKind.ENV_STEP)
OFFERS = {
    "sandbox": (
        service("sandbox", SANDBOX_KINDS),
        service("sandbox:debian", (ActionKind.ENV_RESET,)),
        service("test-suite", (ActionKind.REWARD,)),
    ),
    "inference": (service("policy", (ActionKind.GENERATE,)),),
    "reward": (service("scorer", (ActionKind.REWARD,)), service("test-suite", (ActionKind.REWARD,))),
}
# By the name of a manager: kind and service of an action that it alone serves.
ASKED = {
    "sandbox": (ActionKind.ENV_RESET, "sandbox:debian"),
    "inference": (ActionKind.GENERATE, "policy"),
    "reward": (ActionKind.REWARD, "scorer"),
}


def world(*roles: str) -> CoreWorld:
    made = CoreWorld(settings=CoreSettings(manager_lease=10.0, expected=expected_roles(roles)))
    made.job()
    made.trajectory("t")
    return made


def submit(made: CoreWorld, action_id: str, role: str, **more: object) -> None:
    kind, name = ASKED[role]
    trajectory = "t" if kind is ActionKind.ENV_RESET else ""
    made.submit(action_request(action_id, kind, trajectory, service=name, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize("role", STANDARD)
def test_what_an_announced_manager_serves_waits_for_it(role: str) -> None:
    made = world(*STANDARD)
    submit(made, "a", role)
    why = at_once(explain_in_parts(made.state, made.live("a"), made.now, made.planner))
    assert why.reason is WaitReason.NO_SERVICE
    assert why.sentence.startswith(f"its manager is on its way: {role}")
    made.plan()
    assert made.state_of("a") is ActionState.QUEUED
    manager = made.manager(role, *OFFERS[role])
    made.plan()
    manager.run("a")
    assert made.state_of("a") is ActionState.SUCCEEDED


@pytest.mark.parametrize("role", STANDARD)
def test_what_no_announced_manager_serves_is_refused(role: str) -> None:
    made = world(*(other for other in STANDARD if other != role))
    with pytest.raises(RefusedError, match="no registered manager serves"):
        submit(made, "a", role)
    with pytest.raises(RefusedError, match="no registered manager serves"):
        made.submit(action_request("b", ActionKind.TOOL_CALL, service="weather"))


def test_once_it_registered_the_usual_rule_holds() -> None:
    made = world("inference")
    manager = made.manager("inference", *OFFERS["inference"])
    with pytest.raises(RefusedError, match="under this name"):
        made.submit(action_request("a", ActionKind.GENERATE, service="another"))
    manager.disconnect()
    made.wait(11.0)
    with pytest.raises(RefusedError, match="no registered manager serves"):
        submit(made, "b", "inference")


def test_what_it_cannot_serve_after_all_fails_when_it_comes() -> None:
    made = world("inference")
    made.submit(
        action_request("wrong name", ActionKind.GENERATE, service="another"),
        action_request("too large", ActionKind.GENERATE, demand=fixed(cpu=5)),
        action_request("patient", ActionKind.GENERATE, service="another", wait=True),
    )
    submit(made, "right", "inference")
    made.manager("inference", *OFFERS["inference"], cores=4)
    for action in ("wrong name", "too large"):
        assert (made.failure(action).kind, made.failure(action).reason) == (FailureKind.ENV, "unservable")
    assert "no registered manager serves generate" in made.failure("wrong name").message
    assert "(4)" in made.failure("too large").message
    assert made.state_of("patient") is made.state_of("right") is ActionState.QUEUED


def test_a_test_suite_waits_for_the_last_of_those_who_may_run_it() -> None:
    made = world("sandbox", "reward")
    made.submit(action_request("wide", ActionKind.REWARD, service="test-suite", demand=fixed(cpu=8)))
    made.manager("sandbox", *OFFERS["sandbox"], cores=4)
    assert made.state_of("wide") is ActionState.QUEUED
    made.manager("reward", *OFFERS["reward"], cores=4)
    assert made.failure("wide").reason == "unservable"


def test_a_reset_that_fails_takes_the_steps_behind_it_along() -> None:
    made = world("sandbox")
    made.submit(action_request("reset", ActionKind.ENV_RESET, "t", service="sandbox:unknown"))
    made.step("step")
    made.manager("sandbox", *OFFERS["sandbox"])
    assert (made.failure("reset").reason, made.failure("step").reason) == ("unservable", "state_lost")


def test_a_manager_that_never_comes_is_awaited_until_schedule_to_start() -> None:
    made = world("reward")
    submit(made, "a", "reward", timeouts=Timeouts(schedule_to_start=30.0, start_to_close=5.0, schedule_to_close=60.0))
    made.wait(31.0)
    assert made.state_of("a") is ActionState.EXPIRED


@given(st.lists(st.sampled_from(STANDARD), unique=True), st.permutations(STANDARD), st.integers(0, 3))
def test_whatever_comes_when_every_action_is_refused_waits_or_runs(
    announced: list[str], order: list[str], already_there: int
) -> None:
    made = world(*announced)
    managers = {role: made.manager(role, *OFFERS[role]) for role in order[:already_there]}
    accepted = set()
    for role in STANDARD:
        if role in announced or role in managers:
            submit(made, role, role)
            accepted.add(role)
        else:
            with pytest.raises(RefusedError):
                submit(made, role, role)
    for role in order[already_there:]:
        managers[role] = made.manager(role, *OFFERS[role])
    assert made.state.expected == ()
    made.plan()
    for role in accepted:
        managers[role].run(role)
        assert made.state_of(role) is ActionState.SUCCEEDED


def test_roles_are_told_apart_by_what_they_serve() -> None:
    for role, offered in OFFERS.items():
        assert [known.name for known in expected_roles(STANDARD) if known.is_served_by(offered)] == [role]


def test_an_unknown_role_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"manager kind: 'gpu' is none of inference, noop, reward, sandbox"):
        expected_roles(("gpu",))


def restarted(*roles: str) -> CoreWorld:
    """A scheduler that was restarted; two managers of a role serve different images, and the first one is back."""
    made = world(*roles).restart()
    made.manager("sandbox", *OFFERS["sandbox"])
    return made


@pytest.mark.parametrize("roles", [(), ("sandbox",)])
def test_what_was_served_before_a_restart_waits_until_its_manager_is_back(roles: tuple[str, ...]) -> None:
    made = restarted(*roles)
    made.submit(
        action_request("a", ActionKind.ENV_RESET, "t", service="sandbox:ubuntu"),
        action_request("b", ActionKind.GENERATE, service="second-model"),
    )
    why = at_once(explain_in_parts(made.state, made.live("a"), made.now, made.planner))
    assert why.sentence == "its manager is on its way: one from before the scheduler's restart has not registered yet"
    made.wait(9.0)
    second = made.manager("second", service("sandbox:ubuntu", (ActionKind.ENV_RESET,)))
    model = made.manager("model", service("second-model", (ActionKind.GENERATE,)))
    made.wait(2.0)
    made.plan()
    second.run("a")
    model.run("b")
    assert made.state_of("a") is made.state_of("b") is ActionState.SUCCEEDED


@pytest.mark.parametrize("roles", [(), ("sandbox",)])
def test_a_lease_after_a_restart_the_usual_rule_holds(roles: tuple[str, ...]) -> None:
    made = restarted(*roles)
    made.submit(
        action_request("a", ActionKind.ENV_RESET, "t", service="sandbox:ubuntu"),
        action_request("patient", ActionKind.GENERATE, service="another", wait=True),
    )
    made.step("behind")
    made.wait(9.0)
    assert made.state_of("a") is ActionState.QUEUED
    made.wait(2.0)
    assert (made.failure("a").reason, made.failure("behind").reason) == ("unservable", "state_lost")
    assert made.state_of("patient") is ActionState.QUEUED
    with pytest.raises(RefusedError, match="no registered manager serves"):
        made.submit(action_request("b", ActionKind.GENERATE, service="another"))


def test_a_role_that_never_registers_is_awaited_longer_than_a_restart() -> None:
    made = world("inference").restart()
    submit(made, "a", "inference")
    made.wait(60.0)
    assert made.state_of("a") is ActionState.QUEUED
    with pytest.raises(RefusedError, match="no registered manager serves"):
        made.submit(action_request("b", ActionKind.TOOL_CALL, service="weather"))


def test_weights_for_a_model_that_is_not_back_yet_wait_for_it() -> None:
    made = world("inference").restart()
    made.manager("first", service("first-model", (ActionKind.GENERATE,)))
    assert (
        refusal(lambda: made.publish(1, offer=offer()), RefusalCode.UNAVAILABLE, "must be named until").retry_after
        == 1.0
    )
    made.publish(1, offer=offer(service="second-model"))
    made.publish(2, offer=offer())
    assert {name: each.version for name, each in made.state.rollouts.items()} == {"second-model": 2}, "as before"
    made.wait(11.0)
    made.manager("again", service("first-model", (ActionKind.GENERATE,)))
    with pytest.raises(RefusedError, match="no registered manager serves generate"):
        made.publish(3, offer=offer(service="third-model"))
