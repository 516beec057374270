"""New weights go from engine to engine, and none is given work for weights that it has not proved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from callsheet.scheduler.core.hosted.rollouts import FIRST_RETRY_S
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.engine_weights import PublishRight, WeightsStanding, WeightsTold
from callsheet.scheduler.core.words.model import ActionKey, ActionKind
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.planner.answers.explain import explain_in_parts
from callsheet.scheduler.service.codec.rollout_answers import rollout_status
from callsheet.v1 import weights_pb2

from tests.support.core_engines import POLICY, CoreEngine, engines, offer
from tests.support.core_requests import action_request, job_request
from tests.support.core_world import CoreWorld
from tests.support.peers import Peer
from tests.support.refusals import refusal


def world_with_engines(count: int = 2) -> tuple[CoreWorld, list[CoreEngine]]:
    world = CoreWorld()
    found = engines(world, count)
    world.job()
    return world, found


def world_with_update() -> tuple[CoreWorld, CoreEngine]:
    """One engine, which is told to update to version 1."""
    world, (only,) = world_with_engines(1)
    world.publish(1, offer=offer())
    return world, only


def world_with_proved() -> tuple[CoreWorld, CoreEngine]:
    """One engine, which has proved version 1."""
    world, only = world_with_update()
    only.prove()
    return world, only


def world_with_quarantined() -> tuple[CoreWorld, CoreEngine]:
    """One engine, whose update to version 1 has failed."""
    world, only = world_with_update()
    only.fail()
    return world, only


def generate(world: CoreWorld, name: str) -> None:
    world.submit(action_request(name, ActionKind.GENERATE), plan=True)


def test_engines_update_one_after_another_and_the_others_serve_meanwhile() -> None:
    world, (first, second) = world_with_engines()
    world.publish(1, offer=offer())
    assert len(first.updates) == 1
    assert not second.updates
    first.begin()
    generate(world, "meanwhile")
    assert (second.has("meanwhile"), first.has("meanwhile")) == (True, False)
    update = first.prove(b"the answer")
    assert (second.updates[-1].reference, second.updates[-1].rollout) == (b"the answer", update.rollout)
    second.begin()
    generate(world, "after")
    assert first.has("after")
    second.prove()
    assert (len(first.updates), len(second.updates)) == (1, 1)
    assert "with policy version 1" in world.why("after")


def test_so_many_update_at_a_time_once_there_is_an_answer_to_compare_with() -> None:
    world, all_of_them = world_with_engines(4)
    world.publish(1, offer=offer(at_once=3))
    assert [len(each.updates) for each in all_of_them] == [1, 0, 0, 0]
    all_of_them[0].prove()
    assert [len(each.updates) for each in all_of_them] == [1, 1, 1, 1]
    world.publish(2, offer=offer("more", at_once=3, expects_answer=True))
    assert [len(each.updates) for each in all_of_them] == [1, 1, 1, 1], "three are at it still"
    all_of_them[1].prove()
    assert [len(each.updates) for each in all_of_them] == [2, 1, 1, 1]
    for each in all_of_them[2:]:
        each.prove()
    assert [len(each.updates) for each in all_of_them] == [2, 2, 2, 1]


def test_a_newer_publish_overtakes_engines_that_have_not_begun() -> None:
    world, (first, second) = world_with_engines()
    world.publish(1, offer=offer("one"))
    world.publish(2, offer=offer("two"))
    assert [each.version for each in first.updates] == [1]
    first.prove()
    assert [each.version for each in second.updates] == [2], "it has the oldest weights"
    second.prove()
    assert [each.version for each in first.updates] == [1, 2]
    first.prove()
    assert all(each.told.version == 2 for each in (first, second))


def test_a_failed_update_is_tried_again_later_and_others_go_on() -> None:
    world, (first, second) = world_with_engines()
    world.publish(1, offer=offer())
    first.fail()
    assert len(second.updates) == 1
    second.prove()
    generate(world, "a")
    assert second.has("a")
    world.wait(FIRST_RETRY_S / 2)
    assert len(first.updates) == 1
    world.wait(FIRST_RETRY_S)
    assert len(first.updates) == 2
    assert first.updates[-1].update > first.updates[0].update
    first.prove()
    weights = world.state.managers["engine-0"].services[POLICY].weights
    assert (weights.failures, weights.gated) == (0, False)
    assert weights.exposed_s > 0.0


def test_an_engine_that_kept_its_old_weights_serves_them_until_it_is_tried_again() -> None:
    world, (only,) = world_with_engines(1)
    world.publish(1, offer=offer("one"))
    proved = only.prove()
    world.publish(2, offer=offer("two"))
    only.begin()
    only.fail("no such directory", proved_by=proved.rollout)
    generate(world, "a")
    assert only.has("a")


def test_an_update_that_nobody_answers_for_counts_as_failed() -> None:
    _, only = world_with_update()
    only.manager.live(240.0)
    assert len(only.updates) == 2


def test_another_process_of_a_manager_serves_nothing_before_it_has_the_published_weights() -> None:
    world, only = world_with_proved()
    only.rejoin(incarnation="second")
    generate(world, "a")
    assert not only.has("a")
    only.prove()
    world.plan()
    assert only.has("a")


def test_an_engine_that_lost_its_weights_is_updated_again() -> None:
    world, only = world_with_proved()
    only.tell(WeightsTold(WeightsStanding.UNPROVED, 0, reason="the engine restarted"))
    generate(world, "a")
    assert (only.has("a"), len(only.updates)) == (False, 2)
    only.prove()
    world.plan()
    assert only.has("a")


def test_an_update_that_was_lost_with_a_stream_is_sent_again() -> None:
    _, only = world_with_update()
    only.manager.disconnect()
    only.rejoin()
    assert len(only.updates) == 1
    only.begin()
    only.manager.disconnect()
    only.rejoin()
    assert not only.updates, "it is at it"


def test_an_engine_that_is_gone_makes_room_for_the_next_one() -> None:
    world, (first, second) = world_with_engines()
    world.publish(1, offer=offer())
    first.begin()
    first.manager.disconnect()
    second.manager.live(15.0)
    assert "engine-0" not in world.state.managers
    assert len(second.updates) == 1


def test_a_restarted_scheduler_goes_on_and_trusts_what_was_proved() -> None:
    world, (first, second) = world_with_engines()
    world.publish(1, offer=offer())
    first.prove(b"the answer")
    world = world.restart()
    for each in (first, second):
        each.move_to(world)
    assert not first.updates
    assert second.updates[-1].reference == b"the answer"
    generate(world, "a")
    assert (first.has("a"), second.has("a")) == (True, False)


def test_a_service_belongs_to_the_job_that_publishes_for_it_until_that_is_closed() -> None:
    world, only = world_with_proved()
    world.job(job_request("other"))
    refusal(
        lambda: world.publish(1, "other", offer("theirs")),
        RefusalCode.FAILED_PRECONDITION,
        "another open job publishes",
    )
    world.close_job()
    world.publish(1, "other", offer("theirs"))
    assert len(only.updates) == 2


def test_a_quarantine_ends_with_the_job_that_caused_it() -> None:
    world, only = world_with_quarantined()
    world.job(job_request("other"))
    world.submit(action_request("theirs", ActionKind.GENERATE, job_id="other"), plan=True)
    assert not only.manager.has(ActionKey("other", "theirs"))
    world.close_job()
    assert not only.updates[-1].plan, "it goes back to its first weights"
    only.begin()
    only.prove()
    world.plan()
    assert (only.manager.has(ActionKey("other", "theirs")), len(only.updates)) == (True, 2)


def test_an_engine_that_cannot_go_back_to_its_first_weights_is_tried_again() -> None:
    world, only = world_with_quarantined()
    world.close_job()
    only.fail("no such directory")
    assert len(only.updates) == 2
    world.wait(FIRST_RETRY_S)
    world.wait(FIRST_RETRY_S)
    assert len(only.updates) == 3


def test_an_update_that_fails_after_its_job_was_closed_quarantines_nobody() -> None:
    world, only = world_with_update()
    only.begin()
    world.close_job()
    only.fail()
    assert not only.updates[-1].plan


def test_an_engine_that_loses_weights_that_nobody_publishes_any_more_goes_back_to_its_first() -> None:
    world, only = world_with_proved()
    world.close_job()
    only.tell(WeightsTold(WeightsStanding.UNPROVED, 0, reason="the engine restarted"))
    assert not only.updates[-1].plan
    world = world.restart()
    only.move_to(world)
    assert not only.updates[-1].plan, "whoever schedules"


def test_an_operator_heals_an_engine_until_the_next_publish() -> None:
    world, only = world_with_quarantined()
    world.heal("engine-0")
    assert not only.updates[-1].plan
    only.prove()
    generate(world, "a")
    assert only.has("a")
    only.manager.live(480.0)
    assert len(only.updates) == 2, "what failed is not tried again"
    world.publish(2, offer=offer("more"))
    assert only.updates[-1].version == 2
    world.heal("engine-0")
    assert len(only.updates) == 3, "it is at it"


def test_an_engine_takes_what_is_published_while_it_is_healed() -> None:
    world, only = world_with_quarantined()
    world.heal("engine-0")
    world.publish(2, offer=offer("more"))
    assert not only.updates[-1].plan, "it is at it"
    only.prove()
    assert only.updates[-1].version == 2
    only.prove()
    generate(world, "a")
    assert only.has("a")


def test_only_engines_that_are_there_can_be_healed() -> None:
    world, (only,) = world_with_engines(1)
    with pytest.raises(RefusedError, match="names no registered manager"):
        world.heal("engine-9")
    world.heal("engine-0")
    assert not only.updates, "there was nothing to heal"
    world.manager("sandboxes")
    only.manager.disconnect()
    with pytest.raises(RefusedError, match="is away or draining"):
        world.heal("engine-0")


def test_a_version_is_published_once_for_a_service() -> None:
    world, only = world_with_update()
    world.publish(1, offer=offer())
    assert len(only.updates) == 1
    refusal(lambda: world.publish(1, offer=offer("others")), RefusalCode.ALREADY_EXISTS, "with other weights")


def test_the_service_must_be_clear() -> None:
    world, _ = world_with_engines(1)
    with pytest.raises(RefusedError, match="did you mean 'policy'"):
        world.publish(1, offer=offer(service="polcy"))
    world.manager("another")
    with pytest.raises(RefusedError, match="must name one of"):
        world.publish(1, offer=offer())
    empty = CoreWorld()
    empty.job()
    with pytest.raises(RefusedError, match="no manager serves generate yet"):
        empty.publish(1, offer=offer())


def test_engines_of_a_group_join_together_or_not_at_all() -> None:
    world, (first, second) = world_with_engines()
    world.publish(1, offer=offer(expects_answer=True, group_ranks=5))
    assert not first.updates
    assert not second.updates
    world.publish(2, offer=offer("even", expects_answer=True, group_ranks=4))
    assert (first.updates[-1].rank, second.updates[-1].rank) == (1, 3)
    first.prove()
    second.fail()
    world.wait(600.0)
    assert len(second.updates) == 1, "the trainer broadcasts once"


def test_payloads_of_weights_that_others_took_the_place_of_are_released() -> None:
    world, _ = world_with_engines(1)
    world.publish(1, offer=offer("one", payloads=frozenset({"a", "b"})))
    newer = offer("two", payloads=frozenset({"b"}))
    todo = world.handle(events.PolicyPublished(events.ReplyTo(Peer("client"), 99), "job", 2, newer))
    released = [each for each in todo if isinstance(each, commands.ReleasePayloads)]
    assert [(each.job_id, each.payloads) for each in released] == [("job", frozenset({"a"}))]


def test_explain_says_that_an_action_waits_for_weights() -> None:
    world, all_of_them = world_with_engines(3)
    world.publish(1, offer=offer(at_once=3, expects_answer=True))
    all_of_them[0].begin()
    all_of_them[1].begin()
    all_of_them[2].fail("the canary differs")
    generate(world, "a")
    said = at_once(explain_in_parts(world.state, world.live("a"), world.now, world.planner)).sentence
    assert said == "it waits for weights: 2 engines are updating, 1 quarantined: the canary differs"
    of_another(world, "b")
    other = at_once(
        explain_in_parts(world.state, world.live(ActionKey("another", "b")), world.now, world.planner)
    ).sentence
    assert other == "it waits for weights: 2 engines are updating, 1 quarantined: what was published was not proved"


# What a job's token lets it publish for.

UNNAMED = PublishRight()
NAMED = PublishRight(frozenset({POLICY}), frozenset({POLICY}))
OTHERS = PublishRight(frozenset({"another"}), frozenset({POLICY, "another"}))


def refused(publish: Callable[[], None]) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        publish()
    assert (caught.value.code, caught.value.field, caught.value.value) == (
        RefusalCode.PERMISSION_DENIED,
        "rollout.service",
        POLICY,
    )
    return caught.value


def of_another(world: CoreWorld, name: str = "a", service: str = POLICY, *, wait: bool = False) -> None:
    """A generate of another job."""
    world.job(job_request("another"))
    world.submit(action_request(name, ActionKind.GENERATE, job_id="another", service=service, wait=wait), plan=True)


def waits(world: CoreWorld) -> None:
    for name in ("engine-0", "engine-1"):
        world.drain(name)
    of_another(world, wait=True)


def runs(world: CoreWorld) -> None:
    of_another(world)


def names_no_service(world: CoreWorld) -> None:
    of_another(world, service="")


def has_ended(world: CoreWorld) -> None:
    world.job(job_request("another"))
    world.submit(action_request("a", ActionKind.GENERATE, job_id="another", service=POLICY))
    world.cancel(ActionKey("another", "a"))


def publishes(world: CoreWorld) -> None:
    world.job(job_request("another"))
    world.publish(1, "another", offer("theirs"), UNNAMED)


def named_very_many(world: CoreWorld) -> None:
    for number in range(70):
        of_another(world, f"a{number}", f"invented-{number}", wait=True)


@pytest.mark.parametrize("use", [waits, runs, names_no_service, has_ended, publishes, named_very_many])
def test_a_service_that_another_open_job_uses_is_published_for_by_name_alone(use: Callable[[CoreWorld], None]) -> None:
    world, _ = world_with_engines()
    use(world)
    world.job()
    before, owner = world.state.jobs["job"].policy_version, world.state.rollouts.get(POLICY)
    for service in ("", POLICY):
        refusal = refused(lambda service=service: world.publish(3, offer=offer(service=service), right=UNNAMED))  # type: ignore[misc]
        assert refusal.rule.startswith("is used by another open job")
        assert refusal.rule.endswith("a token issued with --publishes policy may publish for it")
    assert world.state.jobs["job"].policy_version == before
    assert world.state.rollouts.get(POLICY) is owner
    world.publish(3, right=UNNAMED)  # Its own count of versions.
    world.close_job("another")
    world.publish(4, offer=offer(), right=UNNAMED)
    assert world.state.rollouts[POLICY].job_id == "job"


def test_a_token_that_names_the_service_publishes_beside_others_who_use_it() -> None:
    world, (first, _) = world_with_engines()
    of_another(world)
    world.publish(1, offer=offer(), right=NAMED)
    assert first.updates
    refused(lambda: world.publish(1, "another", offer("theirs"), UNNAMED))
    refusal(
        lambda: world.publish(1, "another", offer("theirs"), NAMED),
        RefusalCode.FAILED_PRECONDITION,
        "another open job publishes",
    )


def test_who_published_first_goes_on_when_others_come() -> None:
    world, (first, second) = world_with_engines()
    world.publish(1, offer=offer(), right=UNNAMED)
    of_another(world)
    world.publish(2, offer=offer("two"), right=UNNAMED)
    refused(lambda: world.publish(3, "another", offer("theirs"), UNNAMED))
    world = world.restart()
    for each in (first, second):
        each.move_to(world)
    world.publish(3, offer=offer("three"), right=UNNAMED)
    assert world.state.rollouts[POLICY].job_id == "job"


def test_a_service_that_a_token_names_is_for_nobody_else_whoever_comes_first() -> None:
    world, _ = world_with_engines()
    refusal = refused(lambda: world.publish(1, offer=offer(), right=OTHERS))
    assert refusal.rule.startswith("is for jobs whose tokens name it")
    assert POLICY not in world.state.rollouts
    # Also once a token came to name it later.
    world.publish(1, offer=offer(), right=UNNAMED)
    refused(lambda: world.publish(2, offer=offer("two"), right=OTHERS))
    assert world.state.rollouts[POLICY].version == 1


def test_after_a_restart_a_job_with_a_past_counts_as_a_user_of_every_service() -> None:
    world, all_of_them = world_with_engines()
    has_ended(world)
    world.job(job_request("quiet"))
    world = world.restart()
    for each in all_of_them:
        each.move_to(world)
    refused(lambda: world.publish(1, offer=offer(service=POLICY), right=UNNAMED))
    world.close_job("another")
    world.publish(1, offer=offer(service=POLICY), right=UNNAMED)


def test_without_tokens_and_for_administrators_it_is_as_before() -> None:
    world, (first, _) = world_with_engines()
    of_another(world)
    world.publish(1, offer=offer())
    assert first.updates


def test_a_job_reads_no_reason_of_the_weights_that_another_published() -> None:
    world, (first, second) = world_with_engines()
    world.job(job_request("another"))
    world.publish(1, "another", offer("theirs", at_once=2, expects_answer=True))
    for each in (first, second):
        each.fail("/weights/of-another/step-1: is cut short")
    second.manager.disconnect()
    world.close_job("another")
    plan = weights_pb2.RolloutPlan(source=weights_pb2.WeightSource(location="/mine")).SerializeToString()
    world.publish(1, offer=replace(offer(), plan=plan))
    second.rejoin()
    (_, engine) = rollout_status(world.state, world.state.rollouts[POLICY], world.now).engines
    assert second.told.reason.startswith("/weights/of-another")
    assert (engine.state, engine.reason) == (weights_pb2.ENGINE_STATE_WAITING, "")
