"""Whatever arrives: it is refused by name, or the core can live with it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import pytest
from callsheet.client import InvalidArgumentError
from callsheet.client.codec.actions import check as check_action
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionRequest
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.service.codec.decode import decode_action, decode_job, decode_trajectory
from callsheet.scheduler.service.codec.manager_commands import encode_command
from callsheet.scheduler.service.codec.manager_wire import decode_item, decode_registration, references_of
from callsheet.v1 import action_pb2, job_pb2, manager_service_pb2
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.any_message import any_message
from tests.support.core_requests import JOB, trajectory_request
from tests.support.core_world import CoreWorld, FakeManager, Stream, ended, node, service
from tests.support.peers import Peer
from tests.support.refusals import refusal
from tests.support.samples import examples

T = TypeVar("T")
FUZZ = settings(max_examples=examples(150))
GENERATE = action_pb2.GenerateInput(prompt_token_ids=[1], sampling=action_pb2.SamplingParameters(max_new_tokens=1))
STEP = action_pb2.EnvStepInput(command=action_pb2.Command(shell="ls"))
REWARD = action_pb2.RewardInput(model=action_pb2.ModelScoreInput(token_ids=[1]))


def accepted(decode: Callable[[], T]) -> T | None:
    """What was decoded, or None if it was refused; a refusal must say why."""
    refusal = None
    try:
        return decode()
    except RefusedError as refused:
        refusal = refused
    for_later = refusal.rule == "is not built yet"
    assert refusal.code is (RefusalCode.UNIMPLEMENTED if for_later else RefusalCode.INVALID_ARGUMENT)
    assert refusal.field
    assert refusal.rule
    assert len(refusal.value) <= 200
    return None


def check(request: ActionRequest) -> None:
    """What the core relies on."""
    timeouts = request.timeouts
    assert 0 < timeouts.schedule_to_close < math.inf
    assert 0 < timeouts.schedule_to_start <= timeouts.schedule_to_close
    assert 0 < timeouts.start_to_close <= timeouts.schedule_to_close
    assert 0 <= timeouts.heartbeat <= timeouts.schedule_to_close
    assert 0 < request.weight < math.inf
    for entry in request.demand.entries:
        assert 0 <= entry.min_units <= entry.max_units
        assert entry.speed_up.at(entry.max_units or 1, entry.min_units) >= 0
    for failed in (1, 2, 10, 10_000):
        assert 0 <= request.retry.backoff(failed) <= request.retry.max_backoff


@given(any_message(action_pb2.ActionSpec))
@FUZZ
def test_any_action_is_decoded_or_refused_and_a_client_is_of_the_same_mind(spec: action_pb2.ActionSpec) -> None:
    decoded = accepted(lambda: decode_action(spec))
    if decoded is not None:
        check(decoded[0])
        check_action(spec)
        return
    refused = refusal(lambda: decode_action(spec))
    with pytest.raises(InvalidArgumentError) as caught:
        check_action(spec)
    assert (caught.value.field, caught.value.value, caught.value.rule) == (refused.field, refused.value, refused.rule)


@st.composite
def nearly_right(draw: st.DrawFn) -> action_pb2.ActionSpec:
    """Actions with good payloads, so that everything else gets its turn."""
    spec = action_pb2.ActionSpec(job_id=JOB, action_id="a", trajectory_id=draw(st.sampled_from(["", "t"])))
    payload = draw(st.sampled_from([GENERATE, STEP, REWARD, action_pb2.EnvResetInput()]))
    name = {"GenerateInput": "generate", "EnvStepInput": "env_step", "RewardInput": "reward"}.get(
        type(payload).__name__, "env_reset"
    )
    getattr(spec, name).CopyFrom(payload)
    if draw(st.booleans()):
        spec.demand.CopyFrom(draw(demands()))
    if draw(st.booleans()):
        spec.timeouts.CopyFrom(draw(any_message(action_pb2.Timeouts)))
    if draw(st.booleans()):
        spec.retry.CopyFrom(draw(any_message(action_pb2.RetryPolicy)))
    spec.weight = draw(st.sampled_from([0.0, 1.0, 1e-300, 1e300, -1.0]))
    spec.unservable = draw(st.sampled_from([0, 2, 2]))  # type: ignore[assignment]
    return spec


@st.composite
def demands(draw: st.DrawFn) -> action_pb2.Demand:
    """Demands that are mostly sane, with any curve."""
    demand = action_pb2.Demand()
    for name in draw(st.lists(st.sampled_from(["cpu", "memory", "gpu", "tokens"]), unique=True, max_size=3)):
        least = draw(st.integers(0, 5000)) if name == "cpu" else 1000 * draw(st.integers(0, 5))
        entry = demand.resources.add(resource=name, min_milli_units=least)
        entry.max_milli_units = draw(st.sampled_from([0, least, least + 7000, 1000 << 40]))
        if draw(st.booleans()):
            entry.speed_up.CopyFrom(draw(any_message(action_pb2.SpeedUp)))
    return demand


@given(nearly_right(), nearly_right())
@FUZZ
def test_the_core_can_live_with_what_was_accepted(first: action_pb2.ActionSpec, second: action_pb2.ActionSpec) -> None:
    """Submit, plan, dispatch, fail, plan again, end: on a node that lacks some of the resources."""
    world = CoreWorld()
    manager = world.manager("m", service(slots=3), on=node("n", 4, memory=512, gpu=1))
    world.job()
    world.trajectory(trajectory_request("t"))
    world.reset("reset")
    second.action_id = "b"
    for spec in (first, second):
        decoded = accepted(lambda spec=spec: decode_action(spec))  # type: ignore[misc]
        if decoded is not None:
            request = decoded[0]
            check(request)
            world.journal.learn(request)
            world.handle(events.SubmitRequested(events.ReplyTo(Peer("client"), 0), request, None))
    for failing in (True, False, False):
        world.plan()
        for grant in manager.stream.all(commands.Dispatch):
            if grant.token in world.state.attempts:
                encode_command(grant)
                _finish(world, manager, grant, failing=failing)
        world.wait(1.0)
    assert all(units >= 0 for units in manager.free.values())


def _finish(world: CoreWorld, manager: FakeManager, grant: commands.Dispatch, *, failing: bool) -> None:
    world.handle(events.AttemptStarted("m", grant.token))
    result = events.AttemptCancelled() if failing else None
    world.handle(ended("m", grant, result))


@given(any_message(job_pb2.JobSpec), any_message(job_pb2.TrajectorySpec))
@FUZZ
def test_any_job_and_trajectory_is_decoded_or_refused(job: job_pb2.JobSpec, trajectory: job_pb2.TrajectorySpec) -> None:
    decoded_job = accepted(lambda: decode_job(job))
    assert decoded_job is None or decoded_job.weight > 0
    decoded_trajectory = accepted(lambda: decode_trajectory(trajectory))
    group = decoded_trajectory.group if decoded_trajectory is not None else None
    assert group is None or 1 <= group.quorum <= group.size


@given(any_message(manager_service_pb2.Registration))
@FUZZ
@example(manager_service_pb2.Registration())
def test_any_registration_is_decoded_or_refused(registration: manager_service_pb2.Registration) -> None:
    """And the core takes what is accepted, whatever it says about attempts and sandboxes."""
    world = CoreWorld()
    world.job()
    joined = accepted(lambda: decode_registration(Stream(), registration))
    if joined is None:
        return
    world.handle(joined)
    world.handle(events.ManagerHeartbeat(joined.manager_id))
    world.wait(100.0)
    assert not world.state.managers


@given(any_message(manager_service_pb2.ManagerItem), st.booleans())
@FUZZ
def test_any_item_of_a_manager_is_decoded_or_refused(item: manager_service_pb2.ManagerItem, registered: bool) -> None:
    world = CoreWorld()
    manager = world.manager(join=registered)
    world.job()
    event = accepted(lambda: decode_item("m", manager.stream, item))
    if event is None:
        return
    if isinstance(event, events.AttemptEnded):
        references_of(item.ended)
        assert event.execution_s >= 0
    world.handle(event)
    world.wait(100.0)
