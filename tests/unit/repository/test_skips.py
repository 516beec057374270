"""With CI=true a skip is a failure, however it comes about."""

from __future__ import annotations

import pytest

OUTCOMES = """
import pytest

def test_skips_itself():
    pytest.skip("no redis")

@pytest.mark.skip(reason="no postgres")
def test_is_marked(): ...

@pytest.mark.gpu
def test_needs_gpu():
    pytest.skip("no GPU")

@pytest.mark.xfail
def test_expected_to_fail():
    assert False
"""
WHOLE_MODULE = 'import pytest; pytest.skip("no bwrap", allow_module_level=True)'


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("CI", raising=False)
    pytester.makeini("[pytest]\nmarkers = gpu: needs a GPU")
    pytester.makepyfile(test_outcomes=OUTCOMES, test_module=WHOLE_MODULE)
    return pytester


def run(suite: pytest.Pytester) -> pytest.RunResult:
    return suite.runpytest_inprocess("-p", "tests.support.skips", "--continue-on-collection-errors")


def test_elsewhere_skips_stay_skips(suite: pytest.Pytester) -> None:
    run(suite).assert_outcomes(skipped=4, xfailed=1)


def test_equal_reasons_are_one_line(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        test_more="""
import pytest

@pytest.mark.parametrize("number", range(50))
def test_needs_docker(number):
    pytest.skip("no Docker engine")

def test_needs_docker_too():
    pytest.skip("no Docker engine")
"""
    )
    lines = [line for line in run(suite).outlines if line.startswith("SKIPPED")]
    assert lines[0] == "SKIPPED [51] no Docker engine"
    assert sorted(lines[1:]) == [
        f"SKIPPED [1] {reason}" for reason in ("no GPU", "no bwrap", "no postgres", "no redis")
    ]


def test_ci_refuses_skips_but_for_gpu(suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    result = run(suite)
    result.assert_outcomes(failed=1, errors=2, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "*with CI=true a skip is a failure: *no bwrap*",
            "*with CI=true a skip is a failure: *no redis*",
            "*with CI=true a skip is a failure: *no postgres*",
        ]
    )
    assert result.ret != 0
