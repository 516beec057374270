"""A pytest plugin: what tests measure is printed at the end of the run. Nothing is decided by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_NAME = "measured"

Measured = Callable[[str], None]


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """A function that takes one line to print."""
    properties: list[tuple[str, object]] = request.node.user_properties  # a worker's reports bring them along

    def take(line: str) -> None:
        properties.append((_NAME, f"{request.node.name}: {line}"))

    return take


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the lines."""
    reports = [report for each in terminalreporter.stats.values() for report in each]
    ended = [report for report in reports if isinstance(report, pytest.TestReport) and report.when == "teardown"]
    lines = [str(line) for report in ended for name, line in report.user_properties if name == _NAME]
    if lines:
        terminalreporter.section("measured, for information")
        for line in lines:
            terminalreporter.write_line(line)
