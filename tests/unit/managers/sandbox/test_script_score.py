"""Scores that scripts write to files."""

from __future__ import annotations

import pytest
from callsheet.managers.sandbox.backend import CommandOutcome
from callsheet.managers.sandbox.rewards.scoring import Score
from callsheet.managers.sandbox.rewards.script_score import LARGEST_SCORE_BYTES, ScoreError, ScriptRun, parse_score
from callsheet.v1 import outcome_pb2


def ended(exit_code: int = 0, signal: int = 0) -> CommandOutcome:
    return CommandOutcome(exit_code or -signal, signal, b"", b"", 0, 0, 1.0, 1.0, 0)


@pytest.mark.parametrize(
    ("content", "score"),
    [(b"0.5", 0.5), (b" +1\n", 1.0), (b".5", 0.5), (b"1.", 1.0), (b"-2e-3", -0.002), (b"0", 0.0), (b"1E3", 1000.0)],
)
def test_a_number_is_the_score(content: bytes, score: float) -> None:
    assert parse_score(content) == Score(score)


@pytest.mark.parametrize(
    ("content", "score", "names"),
    [
        (b'{"score": 0.5, "style": 1}', 0.5, {"score", "style"}),
        (b'{"reward": 2, "other": 1}', 2.0, {"reward", "other"}),
        (b'{"reward": 2, "score": 3}', 3.0, {"reward", "score"}),
        (b' {"accuracy": 0.25}\n', 0.25, {"accuracy"}),
    ],
)
def test_an_object_of_numbers_has_components(content: bytes, score: float, names: set[str]) -> None:
    found = parse_score(content)
    assert (found.score, set(found.components)) == (score, names)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"good",
        b"nan",
        b"NaN",
        b"inf",
        b"-Infinity",
        b"1e999",
        b"1" * 5000,
        b"1" * 60_000 + b"x",
        b"1_000",
        "٣".encode(),
        b"true",
        b"null",
        b'"0.5"',
        b"[1]",
        b"{}",
        b"\xff",
        b"[" * 60_000,
        b'{"a": 1, "b": 2}',
        b'{"score": "1"}',
        b'{"score": true}',
        b'{"score": 1, "parts": {"a": 1}}',
        b'{"score": 1, "other": NaN}',
        b'{"score": 1e999}',
        b'{"score": 1' + b"0" * 400 + b"}",
        b'{"\\ud800": 1}',
        b"0.5 0.6",
        b" " * LARGEST_SCORE_BYTES + b"1",
    ],
)
def test_all_else_is_malformed(content: bytes) -> None:
    with pytest.raises(ScoreError):
        parse_score(content)
    failed = ScriptRun(ended(), content).judge()
    assert isinstance(failed, outcome_pb2.Failed)
    assert (failed.kind, failed.reason) == (outcome_pb2.FAILURE_KIND_ENV, "score_malformed")


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (ScriptRun(ended(1), b"1"), "script_failed"),
        (ScriptRun(ended(0, 9), None), "script_failed"),
        (ScriptRun(ended(), None, "missing"), "score_missing"),
        (ScriptRun(ended(), None, "too_large"), "score_malformed"),
        (ScriptRun(ended(), None, "not_a_file"), "score_malformed"),
    ],
)
def test_what_has_no_score_is_no_zero(run: ScriptRun, reason: str) -> None:
    failed = run.judge()
    assert isinstance(failed, outcome_pb2.Failed)
    assert (failed.kind, failed.reason) == (outcome_pb2.FAILURE_KIND_ENV, reason)


def test_counts_of_tests_are_told_where_a_file_has_both() -> None:
    assert parse_score(b'{"score": 1, "passed": 3, "failed": 1}').total == 4
    assert parse_score(b'{"score": 1, "passed": 3, "failed": 1}').passed == 3
    for odd in (
        b'{"score": 1, "passed": 3}',
        b'{"score": 1, "passed": 1e300, "failed": 0}',
        b'{"score":1,"passed":-1,"failed":2}',
    ):
        assert (parse_score(odd).passed, parse_score(odd).total) == (0, 0)
