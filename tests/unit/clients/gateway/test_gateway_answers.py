"""What a gateway's answers are to an episode: replies, limits and failures with their names."""

from __future__ import annotations

from typing import Any

import pytest
from callsheet.client import ActionCancelledError, FailureKind, NotSucceededError, Reason
from callsheet.environments import ReplyLimitError
from callsheet.environments.policy import CutReplyError, GatewayAnswer, message_of


def _error(status: int, said: str = "no", failure: str = "") -> GatewayAnswer:
    return GatewayAnswer(status, {"error": {"message": said}}, failure)


def test_an_answer_is_the_assistants_message() -> None:
    message = {"role": "assistant", "content": "hello"}
    assert message_of(GatewayAnswer(200, {"choices": [{"message": message}]})) == message


@pytest.mark.parametrize(
    "calls", [{}, {"tool_calls": [{"function": {"name": "bash", "arguments": '{"command": "rm'}}]}]
)
def test_a_reply_that_was_cut_is_none_to_carry_out(calls: dict[str, object]) -> None:
    message = {"role": "assistant", "content": "he", **calls}
    for ended in ("stop", "tool_calls", None):
        assert message_of(GatewayAnswer(200, {"choices": [{"message": message, "finish_reason": ended}]})) == message
    with pytest.raises(CutReplyError) as cut:
        message_of(GatewayAnswer(200, {"choices": [{"message": message, "finish_reason": "length"}]}))
    assert cut.value.reply == message


@pytest.mark.parametrize(
    "answer",
    [
        _error(400, "prompt is too long: the model's maximum context length is 8"),
        _error(400, "failed", "ENV/prompt_too_long"),
    ],
)
def test_a_prompt_without_room_is_a_limit(answer: GatewayAnswer) -> None:
    with pytest.raises(ReplyLimitError):
        message_of(answer)


@pytest.mark.parametrize(
    ("answer", "kind", "reason"),
    [
        (_error(503, failure="INFRA/engine_failed"), FailureKind.INFRA, Reason.ENGINE_FAILED),
        (_error(503), FailureKind.INFRA, Reason.OTHER),
        (_error(429), FailureKind.INFRA, Reason.OTHER),
        (_error(429, failure="QUOTA/other"), FailureKind.QUOTA, Reason.OTHER),
        (_error(504), FailureKind.TIMEOUT, Reason.OTHER),
        (_error(500, failure="POLICY/bad_command"), FailureKind.POLICY, Reason.BAD_COMMAND),
        (_error(400, "messages[0].role"), FailureKind.ENV, Reason.OTHER),
        (GatewayAnswer(502, {}), FailureKind.INFRA, Reason.OTHER),
    ],
)
def test_an_error_is_a_failure_with_its_name(answer: GatewayAnswer, kind: FailureKind, reason: Reason) -> None:
    with pytest.raises(NotSucceededError) as raised:
        message_of(answer)
    outcome: Any = raised.value.outcome
    assert (outcome.kind, outcome.reason) == (kind, reason)


def test_a_closed_trajectory_is_a_cancel() -> None:
    with pytest.raises(ActionCancelledError):
        message_of(_error(409))


@pytest.mark.parametrize(
    ("answer", "again"),
    [
        (_error(503), True),
        (_error(503, failure="INFRA/manager_lost"), True),
        (_error(429, failure="QUOTA/other"), True),
        (_error(500, failure="ENV/no_tokens"), False),
        (_error(400), False),
        (_error(409), False),
    ],
)
def test_only_what_may_go_well_is_tried_again(answer: GatewayAnswer, again: bool) -> None:
    assert answer.may_go_well_next_time is again
