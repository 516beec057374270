"""What all scorers that run a command have in common: how they are run, their placeholders, and what they score."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import anyio
from callsheet.managers.sandbox.agent_sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, CommandSpec, FileSpec

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
    outcome = await sandbox.execute(replace(fill_placeholders(command, values), home=home), stop)
    if not outcome.stopped:
        await sandbox.remove_directory(home)
    return outcome
