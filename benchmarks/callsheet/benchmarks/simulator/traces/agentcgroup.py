"""Converts numbers extracted from AgentCgroup's public raw data (arXiv 2602.09345) to our trace format.

The rules, all of them:

1. Only trajectories of the set `haiku45` are taken: commands of the other sets contain a wait that is not theirs.
2. Calls that do no work outside the model are left out: sub-agents (Task, TaskOutput), lists of things to do, and the
   like. Their turns stay, and their time counts as generation, as it mostly is another model's.
3. The CPU seconds are those measured, at least 0 and at most the call's duration: a call counts as serial. Where none
   were measured, the mean use of all calls is taken, 0.64 core.
4. The label is the category of a shell command ("test", "git", ...); file tools are "file_tool", web tools "web".
5. Shell commands have their tool's time limit, 120 s.
6. A sandbox holds the mean memory of its trajectory; a call's peak is what it added.
7. The task is the trajectory's name without its attempt, so that attempts share one. Every trajectory begins with a
   reset of 1 s that uses 0.1 core: the image is at hand. There are no rewards in the data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice

from callsheet.benchmarks.simulator.input_table import InputError, InputTable, number
from callsheet.benchmarks.simulator.traces.lines import json_tables

_CLEAN_SET = "haiku45"
_NOT_EXTERNAL = frozenset(
    {
        "AskUserQuestion",
        "BashOutput",
        "EnterPlanMode",
        "ExitPlanMode",
        "KillShell",
        "Skill",
        "Task",
        "TaskOutput",
        "TaskStop",
        "TodoWrite",
    }
)
_WEB = frozenset({"WebFetch", "WebSearch"})
_SHELL_TIMEOUT_S = 120.0
_TYPICAL_USE = 0.64


def convert(lines: Iterable[str], name: str) -> Iterator[str]:
    """Lines of our trace format from lines of the extracted data.

    Raises:
        InputError: A line is not as expected.
    """
    for table in json_tables(lines, name):
        if table.text("set") == _CLEAN_SET:
            yield json.dumps(_convert(table), separators=(",", ":"))


def _convert(table: InputTable) -> dict[str, object]:
    identity = table.text("id")
    memory = round(table.number("mem_avg_mb"))
    calls = iter(enumerate(_rows(table, "calls", 8)))
    turns = []
    for index, turn in enumerate(_rows(table, "turns", 4)):
        where = table.where(f"turns[{index}]")
        seconds, context, output, count = (number(value, where, 0.0, float("inf")) for value in turn)
        taken = list(islice(calls, int(count)))
        if len(taken) < int(count):
            raise InputError(where, count, "must not announce more calls than there are")
        actions = []
        for place, call in taken:
            if call[1] in _NOT_EXTERNAL:
                seconds += number(call[3], table.where(f"calls[{place}]"), 0.0, float("inf"))
            else:
                actions.append(_convert_call(call, table.where(f"calls[{place}]")))
        generation = {"seconds": round(seconds, 4), "prompt_tokens": int(context), "output_tokens": int(output)}
        turns.append({"generation": generation, "actions": actions})
    task = identity.split("/attempt_")[0]
    reset = {"label": "reset", "duration_s": 1.0, "cpu_s": 0.1}
    return {"id": identity, "task": task, "image": task, "memory_mb": memory, "reset": reset, "turns": turns}


def _convert_call(call: list[object], where: str) -> dict[str, object]:
    _, tool, category, duration_field, cpu_field, before, peak, _ = call
    duration = number(duration_field, where, 0.0, float("inf"))
    cpu = _TYPICAL_USE * duration if cpu_field is None else number(cpu_field, where, -float("inf"), float("inf"))
    added = 0
    if before is not None and peak is not None:
        added = round(number(peak, where, 0.0, float("inf")) - number(before, where, 0.0, float("inf")))
    action: dict[str, object] = {
        "kind": "env_step",
        "label": _label(str(tool), str(category)),
        "duration_s": duration,
        "cpu_s": round(min(max(cpu, 0.0), duration), 4),
        "peak_memory_mb": max(0, added),
    }
    return action | {"timeout_s": _SHELL_TIMEOUT_S} if tool == "Bash" else action


def _label(tool: str, category: str) -> str:
    if tool == "Bash":
        return category or "other"
    return "web" if tool in _WEB else "file_tool"


def _rows(table: InputTable, field: str, length: int) -> list[list[object]]:
    found = table.value(field)
    if not isinstance(found, list) or not all(isinstance(row, list) and len(row) == length for row in found):
        raise InputError(table.where(field), "...", f"must be a list of lists of {length}")
    return found
