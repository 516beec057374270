"""What all scorers that run a command have in common: where they run, their placeholders, and what they score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from callsheet.managers.sandbox.backend import CommandSpec

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
