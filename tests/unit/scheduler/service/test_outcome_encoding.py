"""Outcomes as clients get them, and refusals as statuses with one typed detail."""

from __future__ import annotations

from dataclasses import replace

import grpc
import pytest
from callsheet.scheduler.core.words.commands import Cancellation, Expiry, OutcomeFacts, OutcomeResult
from callsheet.scheduler.core.words.events import AttemptCancelled, AttemptFailed, AttemptSucceeded
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, ActionState, FailureKind, TimeoutKind
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.history.messages import fill_time
from callsheet.scheduler.service.codec.durations import to_duration
from callsheet.scheduler.service.codec.outcomes import encode_outcome
from callsheet.scheduler.service.codec.refusal_status import to_status
from callsheet.v1 import common_pb2, outcome_pb2
from callsheet.v1.rules.fields import to_seconds
from google.protobuf import duration_pb2, timestamp_pb2

PARTIAL = outcome_pb2.Succeeded(env_step=outcome_pb2.CommandResult(exit_code=1))
ENCODED = PARTIAL.SerializeToString()
FACTS = OutcomeFacts(
    key=ActionKey("j", "a"),
    kind=ActionKind.ENV_STEP,
    state=ActionState.SUCCEEDED,
    result=AttemptSucceeded(ENCODED),
    usage=outcome_pb2.Usage(cpu_s=2.5),
    attempts=2,
    manager_id="m",
    submitted=100.25,
    first_dispatched=101.0,
    dispatched=104.0,
    started=104.5,
    ended=110.25,
    queue_s=2.0,
    execution_s=5.0,
    start_wait_s=0.5,
)


def outcome(result: OutcomeResult) -> outcome_pb2.Outcome:
    return decoded(replace(FACTS, result=result))


def decoded(facts: OutcomeFacts) -> outcome_pb2.Outcome:
    """The outcome as it is kept and delivered."""
    return outcome_pb2.Outcome.FromString(encode_outcome(facts))


def test_a_success_with_all_its_facts() -> None:
    message = outcome(FACTS.result)
    assert message.succeeded == PARTIAL
    assert (message.key.job_id, message.key.action_id, message.attempts, message.manager_id) == ("j", "a", 2, "m")
    assert message.usage.cpu_s == 2.5
    timeline = message.timeline
    assert timeline.submitted.ToNanoseconds() == 100_250_000_000
    assert timeline.first_dispatched.ToNanoseconds() == 101_000_000_000
    assert timeline.dispatched.ToNanoseconds() == 104_000_000_000
    assert timeline.started.ToNanoseconds() == 104_500_000_000
    assert timeline.ended.ToNanoseconds() == 110_250_000_000
    assert (timeline.queue_s, timeline.execution_s) == (2.0, 5.0)
    assert timeline.start_wait_s == 0.5
    assert timeline.overhead_s == pytest.approx(3.0)
    assert not timeline.waited_s


def test_what_was_waited_for_is_told_by_name_and_is_no_overhead() -> None:
    timeline = decoded(replace(FACTS, waited_s={"cores": 2.5})).timeline
    assert timeline.waited_s == {"cores": 2.5}
    assert timeline.overhead_s == pytest.approx(0.5)


def test_a_failure_with_what_it_left() -> None:
    failed = outcome(AttemptFailed(FailureKind.TIMEOUT, "r", "m", ENCODED, TimeoutKind.START_TO_CLOSE, 3.0)).failed
    assert failed == outcome_pb2.Failed(
        kind=outcome_pb2.FAILURE_KIND_TIMEOUT,
        reason="r",
        message="m",
        partial=PARTIAL,
        timeout=outcome_pb2.TIMEOUT_KIND_START_TO_CLOSE,
        retry_after_s=3.0,
    )
    assert not outcome(AttemptFailed(FailureKind.INFRA, "r")).failed.HasField("partial")


@pytest.mark.parametrize("kind", list(FailureKind))
def test_every_kind_of_failure_has_its_name_in_the_contract(kind: FailureKind) -> None:
    failed = outcome(AttemptFailed(kind, "r")).failed
    assert outcome_pb2.FailureKind.Name(failed.kind) == f"FAILURE_KIND_{kind.name}"


@pytest.mark.parametrize("timeout", [each for each in TimeoutKind if each is not TimeoutKind.NONE])
def test_every_deadline_has_its_name_in_the_contract(timeout: TimeoutKind) -> None:
    expired = outcome(Expiry(timeout)).expired
    assert outcome_pb2.TimeoutKind.Name(expired.timeout) == f"TIMEOUT_KIND_{timeout.name}"


def test_a_cancel_with_and_without_what_there_was() -> None:
    assert outcome(Cancellation("why", ENCODED)).cancelled == outcome_pb2.Cancelled(reason="why", partial=PARTIAL)
    assert not outcome(Cancellation("why")).cancelled.HasField("partial")


def test_what_is_no_outcome_is_a_programming_error() -> None:
    with pytest.raises(TypeError, match="no result of an action"):
        encode_outcome(replace(FACTS, result=AttemptCancelled()))


def test_steps_that_were_never_reached_are_unset() -> None:
    facts = replace(
        FACTS,
        result=Expiry(TimeoutKind.SCHEDULE_TO_START),
        usage=None,
        first_dispatched=0.0,
        dispatched=0.0,
        started=0.0,
        execution_s=0.0,
        queue_s=20.0,
    )
    message = decoded(facts)
    for name in ("first_dispatched", "dispatched", "started"):
        assert not message.timeline.HasField(name)
    assert not message.HasField("usage")
    assert message.timeline.overhead_s == 0.0


def test_what_actions_have_in_common_does_not_pass_from_one_to_another() -> None:
    messages = [decoded(replace(FACTS, ended=FACTS.ended + number, attempts=number)) for number in range(3)]
    assert [message.attempts for message in messages] == [0, 1, 2]
    assert [message.timeline.ended.seconds for message in messages] == [110, 111, 112]
    assert [message.timeline.overhead_s for message in messages] == [pytest.approx(3.0 + number) for number in range(3)]


def test_timestamps_are_exact_to_the_microsecond() -> None:
    message = timestamp_pb2.Timestamp()
    fill_time(message, 1_763_000_000.123456)
    assert abs(message.ToNanoseconds() - 1_763_000_000_123_456_000) < 1_000


def test_a_refusal_is_a_status_with_one_detail() -> None:
    refusal = RefusedError(RefusalCode.RESOURCE_EXHAUSTED, "action_id", 7, "the queue is full", 1.5)
    status = to_status(refusal)
    assert status.code == grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
    assert status.message == "action_id: the queue is full (got '7')"
    detail = common_pb2.ErrorDetail()
    assert len(status.details) == 1
    assert status.details[0].Unpack(detail)
    assert (detail.field, detail.value, detail.rule) == ("action_id", "7", "the queue is full")
    assert to_seconds(detail.retry_delay) == 1.5


def test_where_trying_again_cannot_help_there_is_no_delay() -> None:
    detail = common_pb2.ErrorDetail()
    to_status(RefusedError(RefusalCode.INVALID_ARGUMENT, "f", "v" * 1000, "r")).details[0].Unpack(detail)
    assert not detail.HasField("retry_delay")
    assert len(detail.value) == 200


@pytest.mark.parametrize("code", list(RefusalCode))
def test_codes_are_those_of_grpc(code: RefusalCode) -> None:
    assert grpc.StatusCode[code.name].value[0] == code.value


@pytest.mark.parametrize("seconds", [0.0, 0.2, 1.5, 3600.0, 86400.125])
def test_durations_there_and_back(seconds: float) -> None:
    assert to_seconds(to_duration(seconds)) == pytest.approx(seconds, abs=1e-9)


def test_durations_are_read_with_their_nanoseconds() -> None:
    assert to_seconds(duration_pb2.Duration(seconds=-1, nanos=-500_000_000)) == -1.5
