"""Our own trace format: JSON lines, one trajectory each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from callsheet.benchmarks.simulator.input_table import InputError, InputTable
from callsheet.benchmarks.simulator.scenario import Generation, Rollout, Turn, Work
from callsheet.benchmarks.simulator.traces.lines import json_tables
from callsheet.scheduler.core.model import ActionKind

_TURN_KINDS = {kind.name.lower(): kind for kind in (ActionKind.ENV_STEP, ActionKind.TOOL_CALL)}
# What a command uses at least, in cores: nothing runs on none.
_LEAST_USE = 0.01
_SHORTEST_S = 1e-4


def read_trajectories(lines: Iterable[str], name: str) -> Iterator[Rollout]:
    """The trajectories of a trace.

    Args:
        lines: JSON objects.
        name: Of the file, for messages.

    Raises:
        InputError: A line is not as docs/reference/trace-format.md says; file, line, field, value and rule are named.
    """
    seen: set[str] = set()
    for table in json_tables(lines, name):
        rollout = _read_rollout(table)
        if rollout.name in seen:
            raise InputError(table.where("id"), rollout.name, "must differ from the ids before")
        seen.add(rollout.name)
        yield rollout


def _read_rollout(table: InputTable) -> Rollout:
    with table:
        identity = table.text("id")
        rollout = table.read(
            Rollout,
            name=identity,
            job=table.text("job", ""),
            group=table.text("group", identity),
            task=table.text("task", identity),
            arrives=table.number("arrives_s", 0.0),
            reset=_read_action(table.table("reset"), ActionKind.ENV_RESET) if table.has("reset") else None,
            turns=tuple(_read_turn(turn) for turn in table.tables("turns")),
            rewards=tuple(_read_action(reward, ActionKind.REWARD) for reward in table.tables("rewards")),
        )
    if not rollout.turns:
        raise InputError(table.where("turns"), [], "must hold at least one turn")
    if rollout.reset is None and any(work.in_sandbox for work in rollout.works()):
        raise InputError(table.where("reset"), None, "is required, as actions run in a sandbox")
    return rollout


def _read_turn(table: InputTable) -> Turn:
    with table:
        actions = tuple(_read_action(action, None) for action in table.tables("actions"))
        return Turn(table.table("generation").whole(Generation), actions)


def _read_action(table: InputTable, kind: ActionKind | None) -> Work:
    """An action of that kind; of the kind it names itself where None."""
    with table:
        named = kind or _TURN_KINDS[table.text("kind", None, _TURN_KINDS)]
        service, quota = table.text("service", ""), table.text("quota", "")
        duration = max(table.number("duration_s"), _SHORTEST_S)
        call = bool(service or quota)
        cpu = 0.0 if call else max(table.number("cpu_s", high=duration), _LEAST_USE * duration)
        return table.read(
            Work,
            kind=named,
            cpu_s=cpu,
            use=1.0 if call else cpu / duration,
            in_sandbox=table.flag("in_sandbox", named in (ActionKind.ENV_STEP, ActionKind.ENV_RESET)),
            service=service,
            quota=quota,
            service_s=duration if call else 0.0,
        )
