"""What all scorers that run a command have in common: where they run, their placeholders, and what they score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from callsheet.managers.sandbox.backend import CommandSpec
from callsheet.v1 import action_pb2

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


CommandScorer = action_pb2.TestSuiteInput | action_pb2.ScriptScoreInput


def command_scorer(action: action_pb2.ActionSpec) -> CommandScorer | None:
    """Returns the scorer of a reward that runs a command; None for any other action."""
    if action.WhichOneof("payload") != "reward":
        return None
    match action.reward.WhichOneof("scorer"):
        case "test_suite":
            return action.reward.test_suite
        case "script":
            return action.reward.script
        case _:
            return None


def runs_in_sandbox(scorer: CommandScorer) -> bool:
    """Whether it runs in the trajectory's sandbox, and not in a new one."""
    if isinstance(scorer, action_pb2.TestSuiteInput) and scorer.in_sandbox:
        return True
    return scorer.where == action_pb2.REWARD_PLACE_IN_SANDBOX


def fill_placeholders(command: CommandSpec, values: Mapping[str, str]) -> CommandSpec:
    """Returns the command with the placeholders in its arguments filled in."""

    def filled(argument: str) -> str:
        for placeholder, value in values.items():
            argument = argument.replace(placeholder, value)
        return argument

    return replace(command, arguments=tuple(map(filled, command.arguments)))
