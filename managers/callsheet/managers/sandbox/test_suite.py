"""Test-suite rewards: a runner as a fresh process, and a score from its report or its exit code.

With "{report}" in the command the score is passed / (passed + failed) by the report's test cases. Where no score can be
told the action fails instead of scoring 0:

- the runner ran (exit code 0 or 1, or a signal) and left no report that can be read: POLICY "no_report" or
  "bad_report", because the code under test ended its runner;
- it says itself that it could not run (exit code 2 or more) and left no report: ENV "no_report";
- the report has no test that ran: ENV "no_tests".
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

import anyio
from callsheet.managers.executor import PayloadAccess
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec, Sandbox
from callsheet.managers.sandbox.junit import LARGEST_REPORT_BYTES, ReportError, count_tests
from callsheet.managers.sandbox.requests import read_command, read_files
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2

UNITS, REPORT = "{units}", "{report}"
# Exit codes of a runner that ran its tests; pytest, unittest and most others use 1 for tests that fail.
_RAN = frozenset({0, 1})


@dataclass(frozen=True, slots=True)
class Suite:
    """A test suite to run; `command` still holds its placeholders."""

    files: list[FileSpec]
    command: CommandSpec

    @property
    def wants_report(self) -> bool:
        """Whether the score comes from a report."""
        return any(REPORT in argument for argument in self.command.arguments)


@dataclass(frozen=True, slots=True)
class Score:
    """A score; `passed` and `total` are 0 where it comes from the exit code."""

    score: float
    passed: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A suite that ran; `report` is None if none was wanted or found."""

    outcome: CommandOutcome
    wants_report: bool
    report: bytes | None


async def read_suite(suite: action_pb2.TestSuiteInput, payloads: PayloadAccess, settings: SandboxSettings) -> Suite:
    """Returns the suite; raises what `read_files` and `read_command` raise."""
    return Suite(
        await read_files(suite.files, payloads),
        await read_command(suite.command, payloads, settings),
    )


async def run_suite(sandbox: Sandbox, suite: Suite, units: int, stop: anyio.Event) -> SuiteRun:
    """Runs a suite in a sandbox.

    Args:
        sandbox: Where; it is running and has its cores.
        suite: What.
        units: The cores it has.
        stop: Ends it.

    Raises:
        SandboxError: What writing and executing raise.
    """
    for file in suite.files:
        await sandbox.write_file(file, stop)
    # A name that nothing in the sandbox can know before: an earlier process cannot have put a report there.
    name = f"report-{uuid.uuid4().hex}.xml"
    command = fill_placeholders(suite.command, units, sandbox.temporary_path(name))
    outcome = await sandbox.execute(command, stop)
    report = None
    if suite.wants_report and not outcome.stopped:
        report = await sandbox.read_temporary(name, LARGEST_REPORT_BYTES)
    return SuiteRun(outcome, suite.wants_report, report)


def fill_placeholders(command: CommandSpec, units: int, report: str) -> CommandSpec:
    """Returns the command with its placeholders filled in."""
    filled = tuple(argument.replace(UNITS, str(units)).replace(REPORT, report) for argument in command.arguments)
    return replace(command, arguments=filled)


def judge(run: SuiteRun) -> Score | outcome_pb2.Failed:
    """Returns the score of a run that came to its own end, or why there is none."""
    if not run.wants_report:
        return Score(0.0 if run.outcome.failed else 1.0)
    if run.report is None:
        return _no_score(run.outcome, "no_report", "the test runner left no report")
    try:
        counts = count_tests(run.report)
    except ReportError as error:
        return _no_score(run.outcome, "bad_report", f"the test runner's report cannot be read: {error}")
    if counts.total == 0:
        return outcome_pb2.Failed(
            kind=outcome_pb2.FAILURE_KIND_ENV,
            reason="no_tests",
            message=f"the report has no test that ran ({counts.skipped} skipped)",
        )
    return Score(counts.passed / counts.total, counts.passed, counts.total)


def _no_score(outcome: CommandOutcome, reason: str, message: str) -> outcome_pb2.Failed:
    ended = f"signal {outcome.signal}" if outcome.signal else f"exit code {outcome.exit_code}"
    ran = bool(outcome.signal) or outcome.exit_code in _RAN
    kind = outcome_pb2.FAILURE_KIND_POLICY if ran else outcome_pb2.FAILURE_KIND_ENV
    return outcome_pb2.Failed(kind=kind, reason=reason, message=f"{message}; it ended with {ended}")
