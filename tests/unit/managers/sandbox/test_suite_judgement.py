"""Scores of test suites."""

from __future__ import annotations

import threading
from dataclasses import replace

import anyio
import pytest
from callsheet.managers.executor import Completed
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec
from callsheet.managers.sandbox.rewards.reference_runs import RunAfterReset, reference_of
from callsheet.managers.sandbox.rewards.rewards import score_result
from callsheet.managers.sandbox.rewards.scoring import Score, fill_placeholders
from callsheet.managers.sandbox.rewards.test_suite import SuiteRun
from callsheet.v1 import outcome_pb2
from typing_extensions import override

from tests.support.sandbox_attempts import attempt_of, suite


def ended(exit_code: int = 0, signal: int = 0) -> CommandOutcome:
    return CommandOutcome(exit_code or -signal, signal, b"", b"", 0, 0, 1.0, 1.0, 0)


def report(passed: int, failed: int, skipped: int = 0) -> bytes:
    cases = "<testcase/>" * passed
    cases += "<testcase><failure/></testcase>" * failed + "<testcase><skipped/></testcase>" * skipped
    return f"<testsuite>{cases}</testsuite>".encode()


@pytest.mark.parametrize(("outcome", "score"), [(ended(), 1.0), (ended(1), 0.0), (ended(2), 0.0), (ended(0, 11), 0.0)])
def test_without_a_report_the_exit_code_is_the_score(outcome: CommandOutcome, score: float) -> None:
    assert SuiteRun(outcome, wants_report=False, report=None).judge() == Score(score)


def test_the_share_that_passed_is_the_score() -> None:
    assert SuiteRun(ended(1), True, report(3, 1, 5)).judge() == Score(0.75, passed=3, total=4)
    assert SuiteRun(ended(1), True, report(0, 2)).judge() == Score(0.0, passed=0, total=2)


@pytest.mark.parametrize(
    ("outcome", "content", "kind", "reason"),
    [
        (ended(0), None, outcome_pb2.FAILURE_KIND_POLICY, "no_report"),
        (ended(1), None, outcome_pb2.FAILURE_KIND_POLICY, "no_report"),
        (ended(0, 11), None, outcome_pb2.FAILURE_KIND_POLICY, "no_report"),
        (ended(4), None, outcome_pb2.FAILURE_KIND_ENV, "no_report"),
        (ended(0), b"<broken", outcome_pb2.FAILURE_KIND_POLICY, "bad_report"),
        (ended(5), report(0, 0), outcome_pb2.FAILURE_KIND_ENV, "no_tests"),
        (ended(0), report(0, 0, skipped=3), outcome_pb2.FAILURE_KIND_ENV, "no_tests"),
    ],
)
def test_what_cannot_be_scored_is_no_zero(
    outcome: CommandOutcome, content: bytes | None, kind: outcome_pb2.FailureKind.ValueType, reason: str
) -> None:
    failed = SuiteRun(outcome, True, content).judge()
    assert isinstance(failed, outcome_pb2.Failed)
    assert (failed.kind, failed.reason) == (kind, reason)


@pytest.mark.parametrize("wants_report", [False, True])
@pytest.mark.parametrize("outcome", [ended(124), ended(130), ended(137), ended(0, 2), ended(0, 9)], ids=str)
def test_whom_others_or_its_time_ended_has_no_score_in_any_shape(outcome: CommandOutcome, wants_report: bool) -> None:
    for content in (None, report(2, 0), report(0, 1)) if wants_report else (None,):
        failed = SuiteRun(outcome, wants_report, content).judge()
        assert isinstance(failed, outcome_pb2.Failed)
        # As long as the state after reset does not say otherwise.
        assert failed.kind == outcome_pb2.FAILURE_KIND_ENV
        assert reference_of(SuiteRun(outcome, wants_report, content)) != RunAfterReset()


@pytest.mark.parametrize(
    ("outcome", "content", "reason"),
    [
        # Interrupted, internal error and usage, and codes above that a shell gives for signals.
        *((ended(code), report(2, 1), "runner_ended") for code in (2, 3, 4, 5, 126, 134)),
        *((ended(0, number), report(2, 0), "runner_ended") for number in (6, 11)),
        (ended(1), report(3, 0), "bad_report"),
        (ended(0), b"<testsuite tests='1'><testcase/><testcase/></testsuite>", "bad_report"),
        (replace(ended(0), stderr=b"Killed\n"), report(2, 0), "runner_ended"),
        (replace(ended(0), stderr=b"bash: line 1:   12 Terminated   pytest\n"), report(2, 0), "runner_ended"),
    ],
)
def test_a_report_of_a_runner_that_did_not_end_by_itself_does_not_count(
    outcome: CommandOutcome, content: bytes, reason: str
) -> None:
    failed = SuiteRun(outcome, True, content).judge()
    assert isinstance(failed, outcome_pb2.Failed)
    assert (failed.kind, failed.reason) == (outcome_pb2.FAILURE_KIND_POLICY, reason)


def test_what_could_not_be_collected_scores_nothing() -> None:
    assert SuiteRun(ended(2), True, report(0, 1)).judge() == Score(0.0, 0, 1)


def test_as_many_tests_count_as_there_are() -> None:
    assert SuiteRun(ended(0), True, report(3, 0), tests=3).judge() == Score(1.0, 3, 3)
    assert SuiteRun(ended(1), True, report(9, 1), tests=2).judge() == Score(0.5, 9, 10)
    assert SuiteRun(ended(1), True, report(9, 3), tests=2).judge() == Score(0.0, 9, 12)
    failed = SuiteRun(ended(0), True, report(2, 0, skipped=1), tests=3).judge()
    assert isinstance(failed, outcome_pb2.Failed)
    assert (failed.reason, failed.message) == (
        "tests_missing",
        "2 tests ran, and there are 3; it ended with exit code 0",
    )


def test_the_end_of_what_was_printed_is_told_as_text() -> None:
    said = replace(ended(0), stderr=b"x" * 1000 + b"\x1b[31mno\x00\xff such\nthing", stdout=b"not this")
    failed = SuiteRun(said, True, None).judge()
    assert isinstance(failed, outcome_pb2.Failed)
    assert failed.message.endswith("xx [31mno \ufffd such thing")
    assert len(failed.message) < 400


def test_placeholders_are_filled_everywhere() -> None:
    command = CommandSpec(("sh", "-c", "pytest -n {units} --junitxml={report} # {units}"))
    filled = fill_placeholders(command, {"{units}": "3", "{report}": "/tmp/r.xml"})
    assert filled.arguments == ("sh", "-c", "pytest -n 3 --junitxml=/tmp/r.xml # 3")


class _LongRun(SuiteRun):
    """Takes as long to judge as nobody else does anything."""

    others_go_on = threading.Event()

    @override
    def judge(self) -> Score | outcome_pb2.Failed:
        assert self.others_go_on.wait(30)
        return super().judge()


@pytest.mark.anyio
async def test_a_large_report_holds_up_nobody_else() -> None:
    run = _LongRun(ended(1), True, report(3, 1))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_go_on, run)
        result = await score_result(run, attempt_of(suite("true")))
    assert isinstance(result, Completed)
    assert result.succeeded.reward.score == 0.75


async def _go_on(run: _LongRun) -> None:
    run.others_go_on.set()
