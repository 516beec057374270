"""Reports of tests, which untrusted code may have written."""

from __future__ import annotations

import json

import pytest
from callsheet.managers.sandbox.rewards.report_counts import (
    LARGEST_REPORT_BYTES,
    ReportCounts,
    ReportError,
    count_tests,
)

REPORT = b"""<?xml version="1.0" encoding="utf-8"?>
<testsuites><testsuite name="pytest" errors="0" failures="0" tests="900">
  <testcase classname="t" name="passes" time="0.1"/>
  <testcase name="prints"><system-out>failure</system-out></testcase>
  <testcase name="fails"><failure message="assert">trace</failure></testcase>
  <testcase name="breaks"><error message="fixture">trace</error></testcase>
  <testcase name="skips"><skipped message="no"/></testcase>
</testsuite></testsuites>"""


def test_cases_are_counted_and_stated_totals_are_not_believed() -> None:
    counts = count_tests(REPORT)
    assert (counts, counts.total) == (ReportCounts(passed=2, failed=2, skipped=1), 4)


def test_a_single_suite_is_a_report_too() -> None:
    assert count_tests(b"<testsuite><testcase/></testsuite>") == ReportCounts(passed=1)


def test_an_empty_suite_has_no_tests() -> None:
    assert count_tests(b"<testsuites/>").total == 0


def test_suites_may_state_more_tests_than_have_a_verdict_but_not_fewer() -> None:
    inner = (
        "<testsuite tests='1'><testcase/></testsuite><testsuite tests='2'><testcase><skipped/></testcase></testsuite>"
    )
    assert count_tests(f"<testsuites><testsuite tests='3'>{inner}</testsuite></testsuites>".encode()).total == 1
    for stated in ("0", "00", "1"):
        # As pytest writes down the test in which it was interrupted.
        cut = (
            f"<testsuites><testsuite tests='{stated}'><testcase name='a'/><testcase time='0'/></testsuite></testsuites>"
        )
        with pytest.raises(ReportError, match="states"):
            count_tests(cut.encode())
    for odd in ("", "two", "-1", "9" * 5000):
        assert count_tests(f"<testsuite tests='{odd}'><testcase/></testsuite>".encode()).total == 1


def ctrf(*statuses: object) -> bytes:
    tests = [{"name": f"test {number}", "status": status} for number, status in enumerate(statuses)]
    summary = {"tests": 900, "passed": 900, "failed": 0}
    return json.dumps({"results": {"tool": {"name": "pytest"}, "summary": summary, "tests": tests}}).encode()


def test_reports_of_ctrf_are_counted_alike() -> None:
    assert count_tests(ctrf("passed", "failed", "skipped", "pending", "other", 7)) == ReportCounts(1, 3, 2)
    assert count_tests(b"\n " + ctrf()).total == 0


@pytest.mark.parametrize(
    "report",
    [
        b"{",
        b"{}",
        b'{"results": []}',
        b'{"results": {"tests": 3}}',
        b'{"results": {"tests": [{}]}}',
        b'{"results": {"tests": ["passed"]}}',
        b'{"results": ' * 100_000,
        b'{"results": {"tests": [' + b"[" * 100_000,
        ctrf("passed")[:-2],
        b"{" + b" " * (5 << 20) + b"}",
    ],
)
def test_what_is_no_ctrf_is_refused(report: bytes) -> None:
    with pytest.raises(ReportError, match="CTRF"):
        count_tests(report)


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"not xml",
        b"<testsuites><testcase>",
        b"<html><testcase/></html>",
        b"<!DOCTYPE x [<!ENTITY a 'b'>]><testsuites>&a;</testsuites>",
        b"<testsuites>" + b"<a>" * 200 + b"</a>" * 200 + b"</testsuites>",
        b"\xff\xfe\x00",
        # Whoever writes a report chooses its codec; some end with other errors than the parser's.
        *(
            f'<?xml version="1.0" encoding="{name}"?><testsuite><testcase/></testsuite>'.encode()
            for name in ("none-such", "utf-7", "idna", "punycode", "rot13", "hex", "undefined", "shift_jis")
        ),
    ],
)
def test_what_is_no_report_is_refused(report: bytes) -> None:
    with pytest.raises(ReportError):
        count_tests(report)


def test_a_report_that_is_too_large_is_refused() -> None:
    with pytest.raises(ReportError, match="bytes"):
        count_tests(bytes(LARGEST_REPORT_BYTES + 1))
