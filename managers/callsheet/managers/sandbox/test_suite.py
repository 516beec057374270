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
from xml.parsers import expat

import anyio
from callsheet.managers.executor import PayloadAccess
from callsheet.managers.sandbox.agent_sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec
from callsheet.managers.sandbox.command_defaults import CommandDefaults
from callsheet.managers.sandbox.requests import read_command, read_files
from callsheet.managers.sandbox.scoring import UNITS, Score, run_judge
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2

LARGEST_REPORT_BYTES = 32 << 20
_DEEPEST = 64


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

    def start(self, name: str, attributes: dict[str, str]) -> None:
        del attributes
        self._depth += 1
        if self._depth > _DEEPEST:
            raise ReportError(f"elements nested more than {_DEEPEST} deep")
        if self._depth == 1 and name not in {"testsuites", "testsuite"}:
            raise ReportError(f"a document of {name[:100]!r} instead of testsuites")
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


def count_tests(report: bytes) -> ReportCounts:
    """Returns the counts of a report. The totals that it states itself are not believed; its test cases are counted.

    Raises:
        ReportError: It is too large, not well-formed, in an encoding that no report has, has a document type (and so
            could have entities), or is no report.
    """
    if len(report) > LARGEST_REPORT_BYTES:
        raise ReportError(f"{len(report)} bytes; at most {LARGEST_REPORT_BYTES} are read")
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


def _refuse_document_type(*_: object) -> None:
    raise ReportError("it has a document type")


REPORT = "{report}"
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
        return SuiteRun(outcome, self.wants_report, report)


@dataclass(frozen=True, slots=True)
class SuiteRun:
    """A suite that ran; `report` is None if none was wanted or found."""

    outcome: CommandOutcome
    wants_report: bool
    report: bytes | None

    def judge(self) -> Score | outcome_pb2.Failed:
        """Returns the score of a run that came to its own end, or why there is none."""
        if not self.wants_report:
            return Score(0.0 if self.outcome.failed else 1.0)
        if self.report is None:
            return _no_score(self.outcome, "no_report", "the test runner left no report")
        try:
            counts = count_tests(self.report)
        except ReportError as error:
            return _no_score(self.outcome, "bad_report", f"the test runner's report cannot be read: {error}")
        if counts.total == 0:
            return outcome_pb2.Failed(
                kind=outcome_pb2.FAILURE_KIND_ENV,
                reason="no_tests",
                message=f"the report has no test that ran ({counts.skipped} skipped)",
            )
        return Score(counts.passed / counts.total, counts.passed, counts.total)


async def read_suite(
    suite: action_pb2.TestSuiteInput, payloads: PayloadAccess, settings: SandboxSettings, defaults: CommandDefaults
) -> Suite:
    """Returns the suite; raises what `read_files` and `read_command` raise."""
    return Suite(
        await read_files(suite.files, payloads, defaults),
        await read_command(suite.command, payloads, settings, defaults),
    )


def _no_score(outcome: CommandOutcome, reason: str, message: str) -> outcome_pb2.Failed:
    ran = bool(outcome.signal) or outcome.exit_code in _RAN
    kind = outcome_pb2.FAILURE_KIND_POLICY if ran else outcome_pb2.FAILURE_KIND_ENV
    return outcome_pb2.Failed(kind=kind, reason=reason, message=f"{message}; it ended with {outcome.end}")
