"""Where the time of an action went, as spans."""

from __future__ import annotations

import pytest
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.records import ActionFinished, ActionSummary
from callsheet.scheduler.history.messages import fill_time
from callsheet.scheduler.service.codec.spans import SpanFacts, span_of
from callsheet.v1 import outcome_pb2
from google.protobuf import text_format

BEGAN = 1_000.0
"""When each action was submitted."""


def finished(text: str, times: dict[str, float], *, kind: ActionKind = ActionKind.ENV_STEP) -> ActionFinished:
    """The record of an outcome; times are seconds since the submit."""
    outcome = text_format.Parse(text, outcome_pb2.Outcome())
    for name, time in {"submitted": 0.0, **times}.items():
        fill_time(getattr(outcome.timeline, name), BEGAN + time)
    summary = ActionSummary(
        "j", "a", kind, "ended", "pytest", "", "", 1, "m", "n", BEGAN, 0.0, 0.0, 0.0, "", "", "", {}, {}, []
    )
    return ActionFinished("j", "a", "ended", outcome.SerializeToString(), BEGAN, summary)


def parts(span: SpanFacts) -> list[tuple[str, float, float]]:
    """Each with the seconds from the submit between which it lies."""
    return [(each.name, round(each.start / 1e9 - BEGAN, 3), round(each.end / 1e9 - BEGAN, 3)) for each in span.parts]


@pytest.mark.parametrize(
    ("text", "times", "expected"),
    [
        pytest.param("timeline { queue_s: 3 }", {"ended": 3}, [("queue", 0, 3)], id="never dispatched"),
        pytest.param(
            "timeline { queue_s: 1 execution_s: 2 }",
            {"first_dispatched": 1, "dispatched": 1, "started": 1.1, "ended": 3.25},
            [("queue", 0, 1), ("execution", 1.25, 3.25)],
            id="one attempt",
        ),
        pytest.param(
            'timeline { execution_s: 2 waited_s { key: "memory" value: 0.5 } waited_s { key: "cores" value: 0.25 } }',
            {"first_dispatched": 0, "dispatched": 0, "ended": 3},
            [("waiting cores", 0.25, 0.5), ("waiting memory", 0.5, 1), ("execution", 1, 3)],
            id="waits at its manager",
        ),
        pytest.param(
            'timeline { queue_s: 3 execution_s: 1 waited_s { key: "attempts" value: 2 } }',
            {"first_dispatched": 1, "dispatched": 5, "ended": 6},
            [("queue", 0, 1), ("waiting attempts", 1, 3), ("queue", 3, 5), ("execution", 5, 6)],
            id="a second attempt",
        ),
        pytest.param(
            'timeline { queue_s: 1 waited_s { key: "scheduler" value: 2 } }',
            {"ended": 3},
            [("queue", 0, 1), ("waiting scheduler", 1, 3)],
            id="queued over a restart",
        ),
        pytest.param(
            "timeline { execution_s: 9 }",
            {"first_dispatched": 0, "dispatched": 0, "ended": 2},
            [("execution", 0, 2)],
            id="a manager whose clock is fast",
        ),
        pytest.param("", {"ended": 0}, [], id="nothing took time"),
    ],
)
def test_the_time_of_an_action_is_laid_out(
    text: str, times: dict[str, float], expected: list[tuple[str, float, float]]
) -> None:
    span = span_of(finished(text, times))
    assert parts(span) == expected
    assert (span.start, span.end) == (int(BEGAN * 1e9), int((BEGAN + times["ended"]) * 1e9))


GENERATED = "generate { token_ids: [1, 2, 3] cached_tokens: 7 text: 'hidden' "
GENERATED += "policy_versions { version: 4 end: 1 } policy_versions { version: 5 begin: 1 end: 3 } }"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"succeeded {{ {GENERATED} }}", ""),
        (f"cancelled {{ reason: 'hidden' partial {{ {GENERATED} }} }}", ""),
        (
            f"failed {{ kind: FAILURE_KIND_INFRA reason: 'lost' message: 'hidden' partial {{ {GENERATED} }} }}",
            "infra lost",
        ),
    ],
)
def test_tokens_and_versions_are_told_and_no_contents(text: str, error: str) -> None:
    span = span_of(finished(text, {"ended": 1.0}, kind=ActionKind.GENERATE))
    told = {name.removeprefix("callsheet."): value for name, value in span.attributes.items()}
    assert (told["tokens_out"], told["tokens_cached"], told["policy_versions"]) == (3, 7, (4, 5))
    assert (span.name, span.error, told.get("failure", "")) == ("generate pytest", error, error)
    assert "hidden" not in str(span)


def test_an_expiry_names_its_timeout_and_what_is_not_known_is_left_out() -> None:
    span = span_of(finished("expired { timeout: TIMEOUT_KIND_SCHEDULE_TO_START }", {"ended": 1.0}))
    assert span.error == "expired schedule_to_start"
    assert not {"callsheet.manager_id", "callsheet.cpu_s", "callsheet.tokens_out"} & set(span.attributes)


def test_a_commands_output_is_never_told() -> None:
    text = "succeeded { env_step { stdout { inline: 'hidden' } stderr { inline: 'hidden' } } } "
    text += "usage { cpu_s: 1.5 cost { used { key: 'tokens_in' value: 12 } } }"
    span = span_of(finished(text, {"ended": 1.0}))
    assert span.attributes["callsheet.cpu_s"] == 1.5
    assert span.attributes["callsheet.tokens_in"] == 12
    assert "hidden" not in str(span)
