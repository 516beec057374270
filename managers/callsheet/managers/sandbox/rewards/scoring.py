"""Parts that all scorers share: running the judge's command, and a score with its details."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import anyio
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec
from callsheet.managers.sandbox.errors import CannotExecuteError
from callsheet.managers.sandbox.rewards.runner_ends import NOT_EXECUTABLE, NOT_FOUND, last_words
from callsheet.v1 import outcome_pb2

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
