"""A pytest plugin: what tests measure is printed at the end of the run. Nothing is decided by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

_LINES = pytest.StashKey[list[str]]()

Measured = Callable[[str], None]


@pytest.fixture
def measured(request: pytest.FixtureRequest) -> Measured:
    """A function that takes one line to print."""
    lines = request.config.stash.setdefault(_LINES, [])

    def take(line: str) -> None:
        lines.append(f"{request.node.name}: {line}")

    return take


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Prints the lines."""
    lines = config.stash.get(_LINES, [])
    if lines:
        terminalreporter.section("measured, for information")
        for line in lines:
            terminalreporter.write_line(line)
