"""Reads the commands that a reply wants run in a sandbox, by tool calls or fenced blocks, and answers them. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeAlias

from callsheet.client import Command, CommandResult, Failed, FailureKind, Outcome, Succeeded
from callsheet.gateway.chat import Message, Tool
from callsheet.gateway.model_json import read_json

BASH: Final = "bash"
SUBMIT: Final = "submit"
MOST_CALLS: Final = 64
"""Calls, or fenced blocks, of one reply that are carried out."""
_TOO_MANY: Final = f"not run, as all behind it: one reply may have {MOST_CALLS} commands\n"
_MOST_NAME: Final = 100
DEFAULT_TIMEOUT_S: Final = 120.0
LEAST_TIMEOUT_S, _MOST_S = 0.001, 86_400.0
_FENCE: Final = "```"
_SHELLS: Final = ("bash", "sh")
_EXIT: Final = re.compile(r"\n?\[exit code (-?\d{1,10}|none)\]\n?\Z")
_MOST_OUTPUT: Final = 16_000
"""Characters of a command's output that a policy is told; the middle of a longer one is left out."""

BASH_TOOLS: Final[tuple[Tool, ...]] = (
    {
        "type": "function",
        "function": {
            "name": BASH,
            "description": "Runs a shell command in the sandbox and returns its output and exit code.",
            "parameters": {
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": "The command."},
                    "working_directory": {"type": "string", "description": "Where it runs; the home by default."},
                    "timeout_s": {"type": "number", "description": "How many seconds it may run."},
                },
                "required": ["command"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": SUBMIT,
            "description": "Ends the work. What is in the sandbox then is scored.",
            "parameters": {"type": "object", "properties": {}},
        },
    },
)


@dataclass(frozen=True, slots=True)
class SandboxCommand:
    """A command that a reply asks for.

    Attributes:
        command: What to run.
        timeout_s: How long it may run.
        call_id: Id of the call that asked for it; empty for a fenced block.
    """

    command: Command
    timeout_s: float = DEFAULT_TIMEOUT_S
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class BadCall:
    """A call that cannot be carried out, which the policy is told.

    Attributes:
        said: What is wrong with it.
        call_id: Id of the call.
    """

    said: str
    call_id: str


Wanted: TypeAlias = Sequence[SandboxCommand | BadCall]
"""Commands that a reply wants, in order; none if the reply is done."""


@dataclass(frozen=True, slots=True)
class AskedCall:
    """A call as a reply has it, whatever shape a model gave it.

    Attributes:
        call_id: Its id; empty if it has none.
        name: The tool.
        arguments: Its arguments; None where they are no JSON object.
    """

    call_id: str
    name: str
    arguments: Mapping[str, Any] | None


def calls_of(reply: Message) -> list[AskedCall]:
    """Returns the calls of a reply, no more than the most that one may have."""
    calls = reply.get("tool_calls")
    return [_asked(call) for call in calls[: MOST_CALLS + 1]] if isinstance(calls, list | tuple) else []


def _asked(call: object) -> AskedCall:
    of = call if isinstance(call, Mapping) else {}
    function = of.get("function")
    function = function if isinstance(function, Mapping) else {}
    given = function.get("arguments")
    try:
        found = read_json(given) if isinstance(given, str) else given
    except ValueError:
        found = None
    call_id = of.get("id")
    arguments = found if isinstance(found, Mapping) else None
    return AskedCall(call_id if isinstance(call_id, str) else "", str(function.get("name")), arguments)


def bash_wanted(reply: Message) -> Wanted:
    """Returns what a reply wants: each call of `bash`, else its fenced blocks. A call of `submit` ends the list."""
    calls = calls_of(reply)
    ends = next((place for place, call in enumerate(calls) if call.name == SUBMIT), len(calls))
    if calls:
        return first_wanted(_of_call(call) for call in calls[:ends])
    content = reply.get("content")
    blocks = _fenced(content) if isinstance(content, str) else ()
    return first_wanted(SandboxCommand(Command.shell(block.strip())) for block in blocks if block.strip())


def first_wanted(wanted: Iterable[SandboxCommand | BadCall]) -> Wanted:
    """Returns the first of what a reply wants, and in place of one too many what its model is told."""
    found = list(islice(wanted, MOST_CALLS + 1))
    if len(found) > MOST_CALLS:
        found[MOST_CALLS] = BadCall(_TOO_MANY, found[MOST_CALLS].call_id)
    return found


def _fenced(text: str) -> Iterator[str]:
    """Yields what is between the fences of shells, from one fence to the next."""
    closed = iter(text.split(_FENCE)[1:-1])
    for part in closed:
        shell, line_end, block = part.partition("\n")
        if line_end and shell.strip("`").rstrip() in _SHELLS:
            yield block
            next(closed, None)


def submits(reply: Message) -> bool:
    """Returns whether a reply calls `submit`."""
    return any(call.name == SUBMIT for call in calls_of(reply))


def _of_call(call: AskedCall) -> SandboxCommand | BadCall:
    arguments = call.arguments
    if call.name != BASH:
        return BadCall(f"there is no tool {call.name[:_MOST_NAME]!r}: call {BASH} or {SUBMIT}", call.call_id)
    command = None if arguments is None else arguments.get("command")
    if arguments is None or command is None or not _is_program(command):
        return BadCall('arguments: they must be JSON with a text "command"', call.call_id)
    # What the tool does not declare to models: a program with its arguments, and variables, of policies in code.
    place, variables = arguments.get("working_directory") or "", arguments.get("environment") or {}
    timeout_s = arguments.get("timeout_s", DEFAULT_TIMEOUT_S)
    if not (isinstance(place, str) and _is_variables(variables) and _is_seconds(timeout_s)):
        rule = f"working_directory: a text; environment: texts by name; timeout_s: {LEAST_TIMEOUT_S:g} to {_MOST_S:g}"
        return BadCall(rule, call.call_id)
    program = command if isinstance(command, str) else tuple(command)
    return SandboxCommand(Command(program, variables, place), float(timeout_s), call.call_id)


def _is_program(command: object) -> bool:
    if isinstance(command, str):
        return bool(command.strip())
    return isinstance(command, list) and bool(command) and all(isinstance(word, str) for word in command)


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and LEAST_TIMEOUT_S <= value <= _MOST_S


def _is_variables(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(each, str) for pair in value.items() for each in pair)


def bash_call(command: Command, timeout_s: float, call_id: str) -> Message:
    """Returns the reply that calls `bash` for a command; a policy in code speaks with it."""
    program = command.program if isinstance(command.program, str) else list(command.program)
    arguments: dict[str, Any] = {
        "command": program,
        "working_directory": command.working_directory,
        "environment": dict(command.environment),
        "timeout_s": timeout_s,
    }
    return call_message(BASH, arguments, call_id)


def call_message(name: str, arguments: Mapping[str, Any], call_id: str) -> Message:
    """Returns a reply that calls one tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    call = {"id": call_id, "type": "function", "function": function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@dataclass(frozen=True, slots=True)
class CommandReport:
    """Report on a command.

    Attributes:
        exit_code: The command's exit code, minus the signal that ended it if one did; None if it ran out of time or
            memory.
        output: The text that it printed, or the reason for its failure.
    """

    exit_code: int | None
    output: str


def report_of(outcome: Outcome[CommandResult]) -> CommandReport | None:
    """Returns what a policy is to see of an outcome: a failure of its command is something to learn from.

    Returns:
        None where the service failed, or the action was given up.
    """
    if isinstance(outcome, Failed) and outcome.kind is not FailureKind.INFRA:
        before = _output(outcome.partial)
        return CommandReport(None, f"{before}{outcome.kind.value}: {outcome.message}\n")
    if not isinstance(outcome, Succeeded):
        return None
    result = outcome.value
    return CommandReport(result.exit_code, _output(result))


def _output(result: CommandResult | None) -> str:
    return (result.stdout + result.stderr).decode(errors="replace") if isinstance(result, CommandResult) else ""


def report_text(report: CommandReport) -> str:
    """Returns a report as a policy reads it; `read_report` reads it again."""
    output = report.output
    if len(output) > _MOST_OUTPUT:
        left_out = len(output) - _MOST_OUTPUT
        output = f"{output[: _MOST_OUTPUT // 2]}\n... {left_out} characters ...\n{output[-_MOST_OUTPUT // 2 :]}"
    code = "none" if report.exit_code is None else report.exit_code
    return f"{output}\n[exit code {code}]\n"


def read_report(text: str) -> CommandReport:
    """Returns the report of a text."""
    found = _EXIT.search(text)
    if found is None:
        return CommandReport(None, text)
    return CommandReport(None if found[1] == "none" else int(found[1]), text[: found.start()])


def told(call_id: str, text: str) -> Message:
    """Returns the message that answers a call, or a fenced block."""
    if call_id:
        return {"role": "tool", "tool_call_id": call_id, "content": text}
    return {"role": "user", "content": text}
