"""Submits: what is accepted, what is attached, and what is refused with which words."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words import commands, events, records
from callsheet.scheduler.core.words.model import (
    CPU,
    ActionKey,
    ActionKind,
    ActionState,
    Opened,
    Opening,
)
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.core.work.servability import MAX_CACHED, check_servable

from tests.support.core_requests import action_request, fixed, trajectory_request
from tests.support.core_world import (
    CoreWorld,
    node,
    service,
    world_with_manager,
    world_with_sandbox,
    world_with_trajectory,
)
from tests.support.peers import Peer
from tests.support.refusals import refusal


def test_a_job_that_is_opened_anew_has_a_life_of_its_own() -> None:
    world = CoreWorld()
    first = world.job().life
    assert world.job().life == first
    assert world.trajectory("t").life == first
    world = world.restart()
    assert world.job().life == first
    world.close_trajectory("t")
    assert world.trajectory("t").life == first
    world.close_job()
    second = world.job().life
    assert second > first
    assert world.trajectory("t") == Opened(Opening.CREATED)
    world.close_job()
    world = world.restart()
    assert world.job().life > second


def test_a_submit_is_persisted_before_it_is_acknowledged() -> None:
    world, _ = world_with_trajectory()
    world.submit(action_request("a"))
    assert world.journal.actions["job", "a"].state == "queued"
    assert commands.Accept.after_commit
    assert commands.Deliver.after_commit
    assert commands.AcknowledgeEnd.after_commit
    assert not commands.Dispatch.after_commit


@pytest.mark.parametrize("finished", [False, True])
def test_another_body_under_the_same_key_is_refused(finished: bool) -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a"))
    if finished:
        world.plan()
        manager.run("a")
    assert (
        refusal(
            lambda: world.submit(action_request("a", body="other")), RefusalCode.ALREADY_EXISTS, "another body"
        ).field
        == "action_id"
    )


class GonePeer(Peer):
    """Somebody who reads nothing any more."""

    gone = True


def test_who_attaches_takes_the_place_of_sessions_that_are_gone() -> None:
    world, _ = world_with_manager()
    for watcher in (GonePeer("one"), GonePeer("two"), Peer("three")):
        world.submit(action_request("a"), watcher=watcher)
    world.watch("a", "four")
    assert world.live("a").watchers == [Peer("three"), Peer("four")]


def test_a_submit_without_a_watcher_is_carried_out_all_the_same() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a"), watcher=None, plan=True)
    manager.run("a")
    assert world.state_of("a") is ActionState.SUCCEEDED
    assert not world.delivered


def test_somebody_who_comes_later_can_watch() -> None:
    world, manager = world_with_trajectory()
    world.submit(action_request("a"), watcher=None)
    world.watch("a", "late")
    world.plan()
    manager.run("a")
    world.watch("a", "later")
    assert [watcher for watcher, _ in world.delivered] == ["late", "later"]
    refusal(lambda: world.watch("b", "late"), RefusalCode.NOT_FOUND)


def test_an_env_step_needs_a_sandbox_or_a_reset_ahead_of_it() -> None:
    world, _ = world_with_trajectory()
    refusal(lambda: world.step("early"), RefusalCode.FAILED_PRECONDITION, "submit an env_reset first")
    world.reset("reset")
    world.step("pipelined")
    assert world.state_of("pipelined") is ActionState.QUEUED


@pytest.mark.parametrize(
    ("resource", "nearest"),
    [("memroy", "memory"), ("cpus", "cpu"), ("GPU", "gpu"), ("h10O", "h100"), ("bandwidth", "")],
)
def test_an_unknown_resource_names_the_nearest_known_one(resource: str, nearest: str) -> None:
    world, _ = world_with_manager("m", on=node("n", 4, memory=512, h100=2))
    with pytest.raises(RefusedError) as caught:
        world.submit(action_request("a", demand=fixed(**{resource: 1})))
    assert (caught.value.field, caught.value.value) == ("demand.resources", resource)
    ending = f"; did you mean {nearest!r}?" if nearest else "name"
    assert caught.value.rule.endswith(ending)


@pytest.mark.parametrize(("name", "nearest"), [("wether", "weather"), ("sandbox", ""), ("Weather", "weather")])
def test_an_unknown_service_names_the_nearest_of_its_kind(name: str, nearest: str) -> None:
    world, _ = world_with_manager(
        "m", service("weather", [ActionKind.TOOL_CALL]), service("sandboxes", [ActionKind.ENV_RESET])
    )
    with pytest.raises(RefusedError) as caught:
        world.submit(action_request("a", service=name))
    ending = f"; did you mean {nearest!r}?" if nearest else "under this name"
    assert (caught.value.field, caught.value.rule.endswith(ending)) == ("service", True)


@pytest.mark.parametrize(("image", "hint"), [("djagno", "; did you mean 'django'?"), ("x", "; there are django")])
def test_an_unknown_image_is_called_an_image(image: str, hint: str) -> None:
    world, _ = world_with_manager(
        "m", service("sandbox", [ActionKind.ENV_RESET]), service("sandbox:django", [ActionKind.ENV_RESET])
    )
    with pytest.raises(RefusedError) as caught:
        world.submit(action_request("a", ActionKind.ENV_RESET, service=f"sandbox:{image}"))
    assert (caught.value.field, caught.value.value) == ("image", image)
    how_to_add = " (a sandbox manager has what is below its --images, and pulls from each --registry)"
    assert caught.value.rule.endswith(f"of this name{hint}{how_to_add}")


def test_cores_that_others_have_for_good_are_told_apart_from_absent_ones() -> None:
    world = CoreWorld()
    pool = service("sandbox", [ActionKind.ENV_RESET], shared={CPU: 1})
    engine = service("policy", [ActionKind.GENERATE], reserved={CPU: 1})
    world.manager("m", pool, engine, service("scorer", [ActionKind.REWARD]), on=node("n", 2))
    world.job()
    with pytest.raises(RefusedError, match="has \\(0\\); of up to 2 units the others are shared by commands") as caught:
        world.submit(action_request("a", ActionKind.REWARD, service="scorer", demand=fixed(cpu=1)))
    assert caught.value.field == "demand.resources[cpu]"
    with pytest.raises(RefusedError, match="has \\(0\\) \\(got"):
        world.submit(action_request("a", ActionKind.REWARD, service="scorer", demand=fixed(cpu=3)))


def test_units_that_are_there_on_different_nodes_only_are_refused() -> None:
    world = CoreWorld()
    world.manager("wide", cores=8, memory=10)
    world.manager("deep", cores=1, memory=1000)
    world.job()
    with pytest.raises(RefusedError, match="no single node"):
        world.submit(action_request("a", demand=fixed(cpu=8, memory=1000)))


def test_reserved_units_do_not_count_as_servable() -> None:
    world, _ = world_with_manager("m", service(reserved={"cpu": 3}), cores=4)
    with pytest.raises(RefusedError, match=r"\(1\)"):
        world.submit(action_request("a", demand=fixed(cpu=2)))


def test_an_env_step_larger_than_the_node_of_its_sandbox_is_refused() -> None:
    world, _ = world_with_sandbox()
    world.manager("larger", cores=16)
    with pytest.raises(RefusedError, match=r"\(4\)"):
        world.submit(action_request("a", ActionKind.ENV_STEP, "t", demand=fixed(cpu=5)))


def test_closing_a_trajectory_with_a_reset_and_steps_behind_it_cancels_each_once() -> None:
    world, _ = world_with_trajectory()
    world.reset("reset")
    world.step("one")
    world.step("two")
    world.close_trajectory("t")
    assert {facts.state for facts in world.outcomes.values()} == {ActionState.CANCELLED}
    assert len(world.outcomes) == 3


def test_a_refusal_leaves_no_record_behind() -> None:
    world, _ = world_with_trajectory()
    before = dict(world.journal.actions)
    with pytest.raises(RefusedError):
        world.step("early")
    assert world.journal.actions == before
    assert world.state.find_action(ActionKey("job", "early")) is None


def test_a_handled_submit_returns_its_record_before_its_acknowledgement() -> None:
    world, _ = world_with_trajectory()
    request = action_request("a")
    world.journal.learn(request)
    todo = world.handle(events.SubmitRequested(events.ReplyTo(Peer("client"), 99), request, None))
    kinds = [type(command.record) if isinstance(command, commands.Persist) else type(command) for command in todo]
    assert kinds == [records.ActionSubmitted, commands.Accept]


def test_only_the_acknowledgement_of_a_submit_may_wait() -> None:
    world, _ = world_with_trajectory()
    request = action_request("a")
    world.journal.learn(request)
    reply_to = events.ReplyTo(Peer("client"), 99)
    happened: list[tuple[events.Event, bool]] = [
        (events.TrajectoryOpenRequested(reply_to, trajectory_request("another")), False),
        (events.SubmitRequested(reply_to, request, None), True),
        (events.SubmitRequested(reply_to, request, None), False),
        (events.CancelRequested(reply_to, request.key, "enough"), False),
    ]
    for event, patient in happened:
        accepted = [command for command in world.handle(event) if isinstance(command, commands.Accept)]
        assert [command.patient for command in accepted] == [patient], event


def test_what_can_be_served_is_remembered_of_so_many_demands_only() -> None:
    world, _ = world_with_manager(memory=2 * MAX_CACHED)
    for memory in range(1, MAX_CACHED + 10):
        request = action_request("a", demand=fixed(memory=memory))
        check_servable(world.state, request, None)
    assert len(world.state.servable_cache) <= MAX_CACHED
