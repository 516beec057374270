"""Script rewards: a fresh process that writes its score to a file.

The score counts only if the script ends with exit code 0. Otherwise, and if the file has no score, the action fails
instead of scoring 0. The reason is "script_failed", "score_missing" or "score_malformed", or "runner_missing" as for
test suites. The same run on the state after reset decides who is at fault, see `reference_runs.settle`. Without such a
run the kind of failure is ENV.

If the file holds the numbers of tests that "passed" and "failed", as many tests must have run as on the state after
reset.
"""

from __future__ import annotations

import json
import math
import re
import uuid
from dataclasses import dataclass, replace
from typing import NoReturn

import anyio
from callsheet.managers.executor import PayloadAccess
from callsheet.managers.sandbox.agent_client.command_defaults import CommandDefaults
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec
from callsheet.managers.sandbox.commands.requests import read_command, read_files
from callsheet.managers.sandbox.errors import FileRefusedError
from callsheet.managers.sandbox.files.paths import checked_path
from callsheet.managers.sandbox.rewards.runner_ends import cannot_start
from callsheet.managers.sandbox.rewards.scoring import UNITS, Score, no_score, run_judge
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2
from callsheet.v1.names import SCORE_PLACEHOLDER

LARGEST_SCORE_BYTES = 64 << 10
_ENV = outcome_pb2.FAILURE_KIND_ENV

# Each digit can be matched in one way only: else a long row of them takes a time that grows with its square.
_DECIMAL = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)

_NAMES = ("score", "reward")

_MOST_TESTS = 1 << 24


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
