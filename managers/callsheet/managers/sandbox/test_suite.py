"""Test-suite rewards: a runner as a fresh process, and a score from its report or its exit code.

With "{report}" in the command the score is passed / (passed + failed) by the report's test cases. A report counts only
where the runner ended by itself, with exit code 0, or with 1 and a test that failed, and where as many tests ran as
there are. Otherwise the action fails:

- "runner_missing": the runner could not begin;
- "runner_ended": it ended in another way than after its tests;
- "no_report", "bad_report", "no_tests", "tests_missing": that is what its report is.

Who is at fault there is told by the same run on the state after reset, see `reference_runs`. Where there is none, the
kinds that are named here hold.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from dataclasses import dataclass, replace
from xml.parsers import expat

import anyio
from callsheet.managers.executor import PayloadAccess
from callsheet.managers.sandbox.agent_sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec
from callsheet.managers.sandbox.command_defaults import CommandDefaults
from callsheet.managers.sandbox.requests import read_command, read_files
from callsheet.managers.sandbox.runner_ends import cannot_start, says_killed
from callsheet.managers.sandbox.scoring import UNITS, Score, no_score, of_tests, run_judge
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2

LARGEST_REPORT_BYTES = 32 << 20
# Parsed as a whole, and not while it is read.
_LARGEST_CTRF_BYTES = 4 << 20
_DEEPEST = 64
_LONGEST_NUMBER, _SPACE_BEFORE = 9, 64


class ReportError(ValueError):
    """A report that cannot be read."""


@dataclass(frozen=True, slots=True)
class ReportCounts:
    """How many tests passed, failed (or broke) and were skipped."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    @property
    def total(self) -> int:
        """Tests that ran."""
        return self.passed + self.failed


class _Counter:
    """Counts test cases as the parser meets them; keeps nothing else of the document."""

    def __init__(self) -> None:
        self.passed = self.failed = self.skipped = 0
        self._depth = 0
        self._verdict = ""
        # Of each suite around: how many tests it states, and how many had been counted before it.
        self._suites: list[tuple[str, int]] = []

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ReportError(f"elements nested more than {_DEEPEST} deep")
        if self._depth == 1 and name not in {"testsuites", "testsuite"}:
            raise ReportError(f"a document of {name[:100]!r} instead of testsuites")
        if name == "testsuite":
            self._suites.append((attributes.get("tests", ""), self.passed + self.failed))
        if name == "testcase":
            self._verdict = "passed"
        elif name in {"failure", "error"} and self._verdict:
            self._verdict = "failed"
        elif name == "skipped" and self._verdict == "passed":
            self._verdict = "skipped"

    def end(self, name: str) -> None:
        self._depth -= 1
        if name == "testcase":
            self.passed += self._verdict == "passed"
            self.failed += self._verdict == "failed"
            self.skipped += self._verdict == "skipped"
            self._verdict = ""
        if name == "testsuite":
            stated, before = self._suites.pop()
            # A test that was interrupted is written down as one that has not failed, and is not in this number.
            if stated.isdecimal() and int(stated[:_LONGEST_NUMBER]) < self.passed + self.failed - before:
                raise ReportError(f"a suite of more test cases than the {stated[:_LONGEST_NUMBER]} that it states")


def count_tests(report: bytes) -> ReportCounts:
    """Returns the counts of a report of JUnit or CTRF.

    The totals that it states itself are not believed; its test cases are counted.

    Raises:
        ReportError: It is too large, not well-formed, in an encoding that no report has, has a document type (and so
            could have entities), or is no report.
    """
    if len(report) > LARGEST_REPORT_BYTES:
        raise ReportError(f"{len(report)} bytes; at most {LARGEST_REPORT_BYTES} are read")
    if report[:_SPACE_BEFORE].lstrip().startswith(b"{"):
        return _count_ctrf(report)
    counter = _Counter()
    parser = expat.ParserCreate()
    parser.StartElementHandler = counter.start
    parser.EndElementHandler = counter.end
    parser.StartDoctypeDeclHandler = _refuse_document_type
    try:
        parser.Parse(report, True)
    except expat.ExpatError as error:
        raise ReportError(f"not well-formed: {error}") from error
    except ReportError:
        raise
    except (LookupError, ValueError) as error:
        # The report names its encoding, and so chooses among all codecs that there are.
        raise ReportError(f"in an encoding that cannot be read: {error}") from error
    return ReportCounts(counter.passed, counter.failed, counter.skipped)


def _count_ctrf(report: bytes) -> ReportCounts:
    if len(report) > _LARGEST_CTRF_BYTES:
        raise ReportError(f"{len(report)} bytes of CTRF; at most {_LARGEST_CTRF_BYTES} are read")
    try:
        statuses = Counter(str(test["status"]) for test in json.loads(report)["results"]["tests"])
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise ReportError(f"no CTRF: {type(error).__name__}") from error
    passed, skipped = statuses.pop("passed", 0), statuses.pop("skipped", 0) + statuses.pop("pending", 0)
    # What has any other status has not passed.
    return ReportCounts(passed, statuses.total(), skipped)


def _refuse_document_type(*_: object) -> None:
    raise ReportError("it has a document type")


REPORT = "{report}"
# Exit codes of a runner that ran its tests to their end; pytest, unittest and most others use 1 for tests that fail.
_PASSED, _TESTS_FAILED = 0, 1
_ENV, _POLICY = outcome_pb2.FAILURE_KIND_ENV, outcome_pb2.FAILURE_KIND_POLICY


@dataclass(frozen=True, slots=True)
class Suite:
    """A test suite to run; `command` still holds its placeholders, and `tests` are as many as there are, or 0."""

    files: list[FileSpec]
    command: CommandSpec
    tests: int = 0

    @property
    def wants_report(self) -> bool:
        """Whether the score comes from a report."""
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
        report = None
        if self.wants_report and not outcome.stopped:
            report = await sandbox.read_temporary(name, LARGEST_REPORT_BYTES)
        return SuiteRun(outcome, self.wants_report, report, self.tests)


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A suite that ran; `report` is None if none was wanted or found, and `tests` are as many as there are, or 0."""

    outcome: CommandOutcome
    wants_report: bool
    report: bytes | None
    tests: int = 0

    def judge(self) -> Score | outcome_pb2.Failed:
        """Returns the score of a run that came to its own end, or why there is none."""
        outcome = self.outcome
        if self.report is None and (lacking := cannot_start(outcome)):
            return no_score(_ENV, "runner_missing", f"the runner cannot begin: {lacking}", outcome)
        if not self.wants_report:
            return Score(0.0 if outcome.failed else 1.0)
        ran = bool(outcome.signal) or outcome.exit_code in {_PASSED, _TESTS_FAILED}
        kind = _POLICY if ran else _ENV
        if self.report is None:
            return no_score(kind, "no_report", "the test runner left no report", outcome)
        try:
            return self._judge_counts(count_tests(self.report))
        except ReportError as error:
            return no_score(kind, "bad_report", f"the test runner's report cannot be read: {error}", outcome)

    def _judge_counts(self, counts: ReportCounts) -> Score | outcome_pb2.Failed:
        outcome = self.outcome
        ended = outcome.signal == 0 and outcome.exit_code in {_PASSED, _TESTS_FAILED} and not says_killed(outcome)
        if not ended and counts.failed and not counts.passed:
            # Nothing could be collected, mostly.
            return Score(0.0, 0, counts.total)
        if counts.total == 0:
            return no_score(_ENV, "no_tests", f"the report has no test that ran ({counts.skipped} skipped)", outcome)
        if not ended:
            return no_score(_POLICY, "runner_ended", "the test runner did not come to the end of its tests", outcome)
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
