"""A pytest plugin: skips are told in a line for each reason, and with CI=true a skipped test is a failed one.

A skip says that something is missing on this machine. Where everything is supposed to be there, it would hide that a
test never ran. Tests marked `docker` or `gpu` may skip everywhere.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator

import pytest

MAY_SKIP = ("docker", "gpu")


def _refuse(report: pytest.TestReport | pytest.CollectReport) -> None:
    report.outcome, report.longrepr = "failed", f"with CI=true a skip is a failure: {_reason(report)}"


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    return report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)


def _in_ci() -> bool:
    return os.environ.get("CI") == "true"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Fails a test that skipped itself or was skipped by a mark; an expected failure stays what it is."""
    report = yield
    expected_to_fail = hasattr(report, "wasxfail")
    if report.skipped and not expected_to_fail and _in_ci() and not any(item.get_closest_marker(m) for m in MAY_SKIP):
        _refuse(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Fails a module that skipped itself as a whole."""
    report = yield
    if report.skipped and _in_ci():
        _refuse(report)
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Tells how many tests were skipped for each reason, which pytest itself does for each place in the code."""
    reports = [report for report in terminalreporter.getreports("skipped") if not hasattr(report, "wasxfail")]
    for reason, count in Counter(_reason(report).removeprefix("Skipped: ") for report in reports).most_common():
        terminalreporter.write_line(f"SKIPPED [{count}] {reason}")
