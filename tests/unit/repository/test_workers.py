"""Of several workers one runs what has to be alone, while the others wait."""

from __future__ import annotations

import pytest

TESTS = """
import pathlib, time, pytest

RUNNING = pathlib.Path(__file__).with_name("running")

@pytest.mark.parametrize("number", range(20))
def test_shares(number):
    mine = RUNNING / f"{__name__}-{number}"
    mine.touch()
    time.sleep(0.005)
    mine.unlink()

@pytest.mark.alone
@pytest.mark.parametrize("number", range(20))
def test_alone(number):
    assert list(RUNNING.iterdir()) == []
    test_shares(number)
    assert list(RUNNING.iterdir()) == []
"""
ARGUMENTS = ("-p", "tests.support.workers", "--dist", "loadfile")


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeini("[pytest]\nmarkers = alone: alone")
    pytester.mkdir("running")
    return pytester


def test_nothing_runs_beside_what_has_to_be_alone(suite: pytest.Pytester) -> None:
    suite.makepyfile(**{f"test_{name}": TESTS for name in "abc"})
    suite.runpytest_inprocess(*ARGUMENTS, "-n", "3").assert_outcomes(passed=120)


def test_what_has_to_be_alone_comes_last(suite: pytest.Pytester) -> None:
    suite.makepyfile(test_a="import pytest\n@pytest.mark.alone\ndef test_last(): ...", test_b="def test_first(): ...")
    lines = suite.runpytest_inprocess(*ARGUMENTS, "-v").outlines
    assert [line.split()[0] for line in lines if "PASSED" in line] == ["test_b.py::test_first", "test_a.py::test_last"]
