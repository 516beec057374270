"""Test-suite rewards: a runner as a fresh process, and a score from its report or its exit code.

If the command has the placeholder "{report}", the score is passed / (passed + failed) of the report's test cases. A
report counts only if the runner ended by itself: with exit code 0, or with 1 and a failed test. And as many tests must
have run as there are. Otherwise the action fails with one of these reasons:

- "runner_missing": the runner could not begin.
- "runner_ended": the runner ended in another way than after its tests. A runner that a signal or its time limit ended,
  and that left no report, has this reason too.
- "no_report", "bad_report", "no_tests" or "tests_missing": the report is missing, malformed, empty or incomplete.

The same run on the state after reset decides who is at fault, see `reference_runs.settle`. Without such a run the kinds
of failure that this module names hold.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
from callsheet.managers.executor import PayloadAccess
from callsheet.managers.sandbox.agent_client.command_defaults import CommandDefaults
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec
from callsheet.managers.sandbox.commands.requests import read_command, read_files
from callsheet.managers.sandbox.rewards import report_counts
from callsheet.managers.sandbox.rewards.report_counts import (
    LARGEST_REPORT_BYTES,
    ReportCounts,
    ReportError,
    count_tests,
)
from callsheet.managers.sandbox.rewards.runner_ends import cannot_start, cut_short, says_killed
from callsheet.managers.sandbox.rewards.scoring import UNITS, Score, no_score, of_tests, run_judge
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2

REPORT = "{report}"

_ENV, _POLICY = outcome_pb2.FAILURE_KIND_ENV, outcome_pb2.FAILURE_KIND_POLICY
# Counting this many takes less than the start of a process.
_LARGE_BYTES = 128 << 10

_COUNT_SECONDS = 60.0

# Exit codes of a runner that ran its tests to their end; pytest, unittest and most others use 1 for tests that fail.
_PASSED, _TESTS_FAILED = 0, 1


@dataclass(frozen=True, slots=True)
class Suite:
    """A test suite to run; `command` still holds its placeholders, and `tests` are as many as there are, or 0."""

    files: list[FileSpec]
    command: CommandSpec
    tests: int = 0

    @property
    def wants_report(self) -> bool:
        """True if the score comes from a report."""
        return any(REPORT in argument for argument in self.command.arguments)

    async def run(self, sandbox: AgentSandbox, units: int, stop: anyio.Event) -> SuiteRun:
        """Runs it in a sandbox.

        Args:
            sandbox: Where; it is running and has its cores.
            units: The cores it has.
            stop: Ends it.

        Raises:
            SandboxError: What writing and executing raise.
        """
        for file in self.files:
            await sandbox.write_file(replace(file, replaces=True), stop)
        # A name that nothing in the sandbox can know before: an earlier process cannot have put a report there.
        name = f"report-{uuid.uuid4().hex}.xml"
        values = {UNITS: str(units), REPORT: sandbox.temporary_path(name)}
        outcome = await run_judge(sandbox, self.command, values, stop)
        report = counted = None
        if self.wants_report and not outcome.stopped:
            report = await sandbox.read_temporary(name, LARGEST_REPORT_BYTES)
        if report is not None and len(report) > _LARGE_BYTES:
            counted = await count_apart(report, sandbox.entries)
        return SuiteRun(outcome, self.wants_report, report, self.tests, counted)


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A suite that ran.

    Attributes:
        outcome: Of its runner.
        wants_report: Whether its score comes from a report.
        report: None if none was wanted or found.
        tests: As many as there are, or 0.
        counted: What the report holds, or why it cannot be read, where that is known already.
    """

    outcome: CommandOutcome
    wants_report: bool
    report: bytes | None
    tests: int = 0
    counted: ReportCounts | ReportError | None = None

    def judge(self) -> Score | outcome_pb2.Failed:
        """Returns the score of a run that came to its own end, or why there is none."""
        outcome = self.outcome
        if self.report is None and (lacking := cannot_start(outcome)):
            return no_score(_ENV, "runner_missing", f"the runner cannot begin: {lacking}", outcome)
        ran = bool(outcome.signal) or outcome.exit_code in {_PASSED, _TESTS_FAILED}
        kind = _POLICY if ran and not cut_short(outcome) else _ENV
        if not self.wants_report:
            if cut_short(outcome):
                return no_score(kind, "runner_ended", "the test runner was ended before its end", outcome)
            return Score(0.0 if outcome.failed else 1.0)
        if self.report is None:
            return no_score(kind, "no_report", "the test runner left no report", outcome)
        try:
            if isinstance(self.counted, ReportError):
                raise self.counted
            return self._judge_counts(self.counted or count_tests(self.report))
        except ReportError as error:
            return no_score(kind, "bad_report", f"the test runner's report cannot be read: {error}", outcome)

    def _judge_counts(self, counts: ReportCounts) -> Score | outcome_pb2.Failed:
        outcome = self.outcome
        ended = outcome.signal == 0 and outcome.exit_code in {_PASSED, _TESTS_FAILED} and not says_killed(outcome)
        if not ended and counts.failed and not counts.passed and not cut_short(outcome):
            # Nothing could be collected, mostly.
            return Score(0.0, 0, counts.total)
        if counts.total == 0:
            return no_score(_ENV, "no_tests", f"the report has no test that ran ({counts.skipped} skipped)", outcome)
        if not ended:
            kind = _ENV if cut_short(outcome) else _POLICY
            return no_score(kind, "runner_ended", "the test runner did not come to the end of its tests", outcome)
        if outcome.exit_code == _TESTS_FAILED and not counts.failed:
            raise ReportError("nothing in it failed")
        return of_tests(counts.passed, counts.total, self.tests, outcome)


async def read_suite(
    suite: action_pb2.TestSuiteInput, payloads: PayloadAccess, settings: SandboxSettings, defaults: CommandDefaults
) -> Suite:
    """Returns the suite; raises what `read_files` and `read_command` raise."""
    return Suite(
        await read_files(suite.files, payloads, defaults),
        await read_command(suite.command, payloads, settings, defaults),
        suite.tests,
    )


async def count_apart(report: bytes, entries: Sequence[Path]) -> ReportCounts | ReportError:
    """Returns what a report holds, or why it cannot be read, as a process of its own finds out.

    Args:
        report: The report.
        entries: What the process writes "0" into first, to enter groups.
    """
    command = [sys.executable, "-I", "-S", report_counts.__file__, *map(str, entries)]
    with anyio.move_on_after(_COUNT_SECONDS) as waiting:
        done = await anyio.run_process(command, input=report, check=False)
    if waiting.cancelled_caught or done.returncode:
        return ReportError("counting it took more time or memory than the sandbox has")
    answer = json.loads(done.stdout)
    return ReportError(answer["error"]) if "error" in answer else ReportCounts(**answer)
