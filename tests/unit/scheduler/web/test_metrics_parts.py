"""What metrics are made of: tallies, the text for Prometheus, and the little HTTP they are served with."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from callsheet.scheduler.core.state.chores import at_once
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.commands import OutcomeFacts
from callsheet.scheduler.core.words.events import AttemptFailed, AttemptSucceeded
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, ActionState, FailureKind
from callsheet.scheduler.core.words.refusals import RefusalCode
from callsheet.scheduler.planner.answers.wanted import wanted_in_parts
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.scheduler.web.metrics import collect, render
from callsheet.scheduler.web.server import parse_head
from callsheet.scheduler.web.tally import BOUNDS_S, Histogram, Tally
from prometheus_client.parser import text_string_to_metric_families

FACTS = OutcomeFacts(
    key=ActionKey("a-job-of-somebody", "an-action-of-it"),
    kind=ActionKind.ENV_STEP,
    state=ActionState.SUCCEEDED,
    result=AttemptSucceeded(b""),
    usage=None,
    attempts=1,
    manager_id="m",
    submitted=100.0,
    first_dispatched=101.0,
    dispatched=101.0,
    started=101.0,
    ended=108.0,
    queue_s=1.0,
    execution_s=6.0,
)


def samples(state: SchedulerState, tally: Tally) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples that Prometheus would read, by name and labels."""
    text = render(collect(state, tally, at_once(wanted_in_parts(state)), 110.0)).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_value_counts_in_the_bucket_of_the_next_bound() -> None:
    histogram = Histogram()
    for value in (0.0, 0.001, 0.0011, 1e9):
        histogram.add(value)
    assert (histogram.counts[0], histogram.counts[1], histogram.counts[-1]) == (2, 1, 1)
    assert len(histogram.counts) == len(BOUNDS_S) + 1


def test_actions_are_told_by_kind_outcome_and_time_and_never_by_name() -> None:
    tally = Tally()
    encode = tally.counting(lambda facts: b"encoded")
    assert encode(FACTS) == b"encoded"
    failed = AttemptFailed(kind=FailureKind.ENV, reason="r", message="m")
    encode(dataclasses.replace(FACTS, state=ActionState.FAILED, result=failed))
    encode(dataclasses.replace(FACTS, state=ActionState.CANCELLED, attempts=0, execution_s=0.0))
    encode(dataclasses.replace(FACTS, waited_s={"cores": 0.75}))
    tally.refused(RefusalCode.NOT_FOUND)
    tally.messages["ClientSession", "written"] += 2
    found = samples(SchedulerState(3, lambda facts: b""), tally)
    ends = {labels: value for (name, labels), value in found.items() if name == "callsheet_actions_total"}
    assert ends == {
        (("failure", failure), ("kind", "env_step"), ("outcome", outcome)): 1.0
        for outcome, failure in (("succeeded", ""), ("failed", "env"), ("cancelled", ""))
    } | {(("failure", ""), ("kind", "env_step"), ("outcome", "succeeded")): 2.0}
    step = ("kind", "env_step")
    assert found["callsheet_action_execution_seconds_count", (step,)] == 3.0  # One was never dispatched.
    assert found["callsheet_action_execution_seconds_sum", (step,)] == 18.0
    assert found["callsheet_action_queue_seconds_bucket", (step, ("le", "1.0"))] == 4.0
    assert found["callsheet_action_overhead_seconds_sum", (step,)] == 1.0 + 1.0 + 7.0 + 0.25
    assert found["callsheet_action_waiting_seconds_sum", (step,)] == 0.75
    assert found["callsheet_action_waited_seconds_total", (("cause", "cores"), step)] == 0.75
    assert found["callsheet_refusals_total", (("code", "NOT_FOUND"),)] == 1.0
    written = (("direction", "written"), ("rpc", "ClientSession"))
    assert (found["callsheet_messages_total", written], found["callsheet_scheduler_epoch", ()]) == (2.0, 3.0)
    assert not [labels for _, labels in found for _, value in labels if "somebody" in value or "action-of" in value]


def test_an_idle_scheduler_has_a_bounded_page() -> None:
    assert len(samples(SchedulerState(1, lambda facts: b""), Tally())) < 500


@pytest.mark.parametrize(
    ("head", "parsed"),
    [
        (
            "GET /metrics HTTP/1.1\r\nHost: h\r\nAUTHORIZATION: Bearer x",
            ("GET", "/metrics", [("host", "h"), ("authorization", "Bearer x")]),
        ),
        ("GET", ("GET", "", [])),
        ("", ("", "", [])),
    ],
)
def test_a_head_is_read_whatever_it_is(head: str, parsed: tuple[str, str, list[tuple[str, str]]]) -> None:
    assert parse_head(head) == parsed


def test_metrics_beyond_this_machine_take_what_the_rest_takes() -> None:
    with pytest.raises(ValueError, match="can be reached from other machines"):
        SchedulerSettings(metrics_listen="0.0.0.0:9000", data_dir=Path("x"))
