"""Scorers that run a command: test suites and scripts, how they are run, and what they score."""

from __future__ import annotations

import json
import math
import re
import sys
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import anyio
from callsheet.managers.executor import PayloadAccess
from callsheet.managers.sandbox.agent_client.command_defaults import CommandDefaults
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec
from callsheet.managers.sandbox.commands.requests import read_command, read_files
from callsheet.managers.sandbox.errors import CannotExecuteError, FileRefusedError
from callsheet.managers.sandbox.files.paths import checked_path
from callsheet.managers.sandbox.rewards import report_counts
from callsheet.managers.sandbox.rewards.report_counts import (
    LARGEST_REPORT_BYTES,
    ReportCounts,
    ReportError,
    count_tests,
)
from callsheet.managers.sandbox.rewards.runner_ends import (
    NOT_EXECUTABLE,
    NOT_FOUND,
    cannot_start,
    cut_short,
    last_words,
    says_killed,
)
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2
from callsheet.v1.names import SCORE_PLACEHOLDER

UNITS = "{units}"


@dataclass(frozen=True, slots=True)
class Score:
    """A score.

    Attributes:
        score: The score.
        passed: Tests that passed; 0 where it does not come from a report.
        total: Tests that ran; likewise.
        components: Named parts of the score.
    """

    score: float
    passed: int = 0
    total: int = 0
    components: Mapping[str, float] = field(default_factory=dict)


def of_tests(passed: int, total: int, expected: int, outcome: CommandOutcome) -> Score | outcome_pb2.Failed:
    """Returns the share that passed of as many tests as there are: what else passed there adds nothing.

    Args:
        passed: Tests that passed.
        total: Tests that ran.
        expected: Tests that there are; 0 where nobody knows.
        outcome: Of the runner.
    """
    if total < expected:
        message = f"{total} tests ran, and there are {expected}"
        return no_score(outcome_pb2.FAILURE_KIND_POLICY, "tests_missing", message, outcome)
    there = expected or total
    return Score(max(0, there - (total - passed)) / there, passed, total)


def no_score(
    kind: outcome_pb2.FailureKind.ValueType, reason: str, message: str, outcome: CommandOutcome
) -> outcome_pb2.Failed:
    """Returns why a run has no score, with the end of what it printed."""
    said = last_words(outcome)
    ended = f"{message}; it ended with {outcome.end}"
    return outcome_pb2.Failed(kind=kind, reason=reason, message=f"{ended}: {said}" if said else ended)


def fill_placeholders(command: CommandSpec, values: Mapping[str, str]) -> CommandSpec:
    """Returns the command with the placeholders in its arguments filled in."""

    def filled(argument: str) -> str:
        for placeholder, value in values.items():
            argument = argument.replace(placeholder, value)
        return argument

    return replace(command, arguments=tuple(map(filled, command.arguments)))


async def run_judge(
    sandbox: AgentSandbox, command: CommandSpec, values: Mapping[str, str], stop: anyio.Event
) -> CommandOutcome:
    """Runs a command that scores, with its placeholders filled in and an empty home; raises what the sandbox raises.

    Whatever ran in the sandbox before had another home, and could leave there what shells and interpreters begin with.
    """
    home = sandbox.temporary_path(f"home-{uuid.uuid4().hex}")
    # Whatever was made of the directory that it is in.
    await sandbox.write_file(FileSpec(home, directory=True, replaces=True), stop)
    try:
        outcome = await sandbox.execute(replace(fill_placeholders(command, values), home=home), stop)
    except CannotExecuteError as error:
        if error.reason == "pids":
            raise
        # As a shell tells it.
        code = NOT_FOUND if error.reason == "no_such_program" else NOT_EXECUTABLE
        outcome = CommandOutcome(code, 0, b"", str(error).encode(), 0, 0, 0.0, 0.0, 0)
    if not outcome.stopped:
        await sandbox.remove_directory(home)
    return outcome


# Test-suite rewards: a runner as a fresh process, and a score from its report or its exit code.
#
# With "{report}" in the command the score is passed / (passed + failed) by the report's test cases. A report counts
# only if the runner ended by itself, with exit code 0, or with 1 and a test that failed, and if as many tests ran as
# there are. Otherwise the action fails:
#
# - "runner_missing": the runner could not begin.
# - "runner_ended": the runner ended in another way than after its tests. So does one without a report that a signal or
#   its time ended.
# - "no_report", "bad_report", "no_tests", "tests_missing": the report is that.
#
# The same run on the state after reset tells who is at fault, see `rewards.settle`. Without such a run the kinds that
# are named here hold.

REPORT = "{report}"
# Counting this many takes less than the start of a process.
_LARGE_BYTES = 128 << 10
_COUNT_SECONDS = 60.0
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


# Script rewards: a fresh process that writes its score to a file.
#
# The score counts only if the script ends with exit code 0. Otherwise, and if the file has no score, the action fails
# instead of scoring 0: as "script_failed", "score_missing" or "score_malformed", or as "runner_missing" like test
# suites. The same run on the state after reset tells who is at fault, see `rewards.settle`; without such a run the kind
# is ENV. If the file says how many tests "passed" and "failed", as many must have run as on that state.

LARGEST_SCORE_BYTES = 64 << 10
# Each digit can be matched in one way only: else a long row of them takes a time that grows with its square.
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_NAMES = ("score", "reward")
_MOST_TESTS = 1 << 24
_ENV = outcome_pb2.FAILURE_KIND_ENV


class ScoreError(ValueError):
    """A file holds no score; the message says why."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script to run; `command` still holds its placeholders.

    Attributes:
        files: Written first.
        command: What to run.
        score_file: A checked path of the score; empty where the command has "{score}".
    """

    files: list[FileSpec]
    command: CommandSpec
    score_file: str

    async def run(self, sandbox: AgentSandbox, units: int, stop: anyio.Event) -> ScriptRun:
        """Runs it in a sandbox.

        Args:
            sandbox: Where; it is running and has its cores.
            units: The cores it has.
            stop: Ends it.

        Raises:
            SandboxError: What writing, removing and executing raise.
        """
        for file in self.files:
            await sandbox.write_file(replace(file, replaces=True), stop)
        if self.score_file:
            await sandbox.remove_file(self.score_file, stop)
        # A name that nothing in the sandbox can know before: an earlier process cannot have put a score there.
        unknown = sandbox.temporary_path(f"score-{uuid.uuid4().hex}")
        values = {UNITS: str(units), SCORE_PLACEHOLDER: unknown}
        outcome = await run_judge(sandbox, self.command, values, stop)
        if outcome.stopped or outcome.failed:
            return ScriptRun(outcome, None)
        try:
            return ScriptRun(outcome, await sandbox.read_file(self.score_file or unknown, LARGEST_SCORE_BYTES, stop))
        except FileRefusedError as error:
            return ScriptRun(outcome, None, error.reason)


@dataclass(frozen=True, slots=True)
class ScriptRun:
    """A script that ran.

    Attributes:
        outcome: Of its process.
        content: Of the file with the score; None if it was not or could not be read.
        refusal: Why it could not be read.
    """

    outcome: CommandOutcome
    content: bytes | None
    refusal: str = ""

    def judge(self) -> Score | outcome_pb2.Failed:
        """Returns the score of a run that came to its own end, or why there is none."""
        outcome = self.outcome
        if lacking := cannot_start(outcome):
            return no_score(_ENV, "runner_missing", f"the script cannot begin: {lacking}", outcome)
        if outcome.failed:
            return no_score(_ENV, "script_failed", "the script failed, so that its score does not count", outcome)
        if self.content is None and self.refusal == "missing":
            return no_score(_ENV, "score_missing", "the script left no file with a score", outcome)
        if self.content is None:
            message = f"the file with the score cannot be read: {self.refusal}"
            return no_score(_ENV, "score_malformed", message, outcome)
        try:
            return parse_score(self.content)
        except ScoreError as error:
            return no_score(_ENV, "score_malformed", f"the file with the score holds none: {error}", outcome)


async def read_script(
    script: action_pb2.ScriptScoreInput, payloads: PayloadAccess, settings: SandboxSettings, defaults: CommandDefaults
) -> Script:
    """Returns the script; raises what `read_files` and `read_command` raise."""
    command = await read_command(script.command, payloads, settings, defaults)
    path = checked_path(script.score_file, below=defaults.directory) if script.score_file else ""
    return Script(await read_files(script.files, payloads, defaults), command, path)


def parse_score(content: bytes) -> Score:
    """Returns the score that a file holds: a number as text or JSON, or a JSON object of numbers.

    Raises:
        ScoreError: It holds none.
    """
    if len(content) > LARGEST_SCORE_BYTES:
        raise ScoreError(f"more than {LARGEST_SCORE_BYTES} bytes")
    try:
        text = content.decode().strip()
        # float() takes more than decimal numbers, for instance "1_000" and "nan".
        found = float(text) if _DECIMAL.fullmatch(text) else json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ScoreError("neither a number nor JSON") from error
    if not isinstance(found, dict):
        return Score(_number(found, "the score"))
    components = {_name(name): _number(value, repr(name[:100])) for name, value in found.items()}
    named = next((name for name in _NAMES if name in components), None)
    if named is None and len(components) != 1:
        raise ScoreError(f"an object of {len(components)} numbers without {' or '.join(map(repr, _NAMES))}")
    score = components[named] if named is not None else next(iter(components.values()))
    passed, failed = (components.get(name, -1.0) for name in ("passed", "failed"))
    if min(passed, failed) < 0 or max(passed, failed) > _MOST_TESTS:
        passed = failed = 0.0
    return Score(score, int(passed), int(passed + failed), components)


def _number(value: object, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ScoreError(f"{what} is not a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ScoreError(f"{what} is not finite")
    return number


def _name(name: str) -> str:
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ScoreError("a name is not valid Unicode") from error
    return name


def _refuse_constant(name: str) -> NoReturn:
    raise ScoreError(f"{name} is not finite")
