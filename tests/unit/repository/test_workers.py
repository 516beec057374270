"""Of several workers one runs what has to be alone, while the others wait; none rewrites what is rewritten."""

from __future__ import annotations

import pytest

from tests.support.other_user import REPOSITORY

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


KEPT_BEFORE = """
import pathlib, pytest

@pytest.hookimpl(optionalhook=True, trylast=True)
def pytest_xdist_setupnodes():
    for each in sorted(pathlib.Path(__file__).parent.rglob("test_*-pytest-*.pyc")):
        print("kept", each.name.partition(".")[0])
"""


def test_assertions_are_rewritten_before_workers_start(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    pytester.makeconftest(KEPT_BEFORE)
    pytester.makepyfile(test_a="def test_one():\n    found = 1\n    assert found == 2", test_b="def test_two(): ...")
    ran = pytester.runpytest_subprocess("-p", "tests.support.rewriting", "-n", "2")
    ran.assert_outcomes(passed=1, failed=1)
    ran.stdout.fnmatch_lines(["kept test_a", "kept test_b", "*assert 1 == 2"])
