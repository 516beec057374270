"""Accounts for every action of a load: what its clients were told, what managers started, what the scheduler keeps."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from callsheet.client import ClientOptions, NotFoundError
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import SchedulerStatus

from tests.support.rollouts import IN_SANDBOX, JOB, canonical

QUIET_S = 60.0
_POLL_S = 0.01
_ASKERS = 16


class HangError(AssertionError):
    """Nothing happened for too long."""


@dataclass
class Arrivals:
    """What the client processes wrote into their log, read as it grows.

    Attributes:
        accepted: Ids of acknowledged actions, the first acknowledgement first.
        outcomes: By action, the first line about its outcome.
        contradictions: Outcomes that differ from the first one of their action.
    """

    path: Path
    accepted: dict[str, None] = field(default_factory=dict)
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    contradictions: list[tuple[str, str]] = field(default_factory=list)
    _offset: int = 0

    def read(self) -> bool:
        """Takes in what was added, and returns whether there was anything."""
        if not self.path.exists():
            return False
        with self.path.open("rb") as log:
            log.seek(self._offset)
            added = log.read()
        # A line that is being written is read next time.
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            self._take(json.loads(line))
        return bool(whole)

    def _take(self, line: dict[str, Any]) -> None:
        if "accepted" in line:
            self.accepted[line["accepted"]] = None
            return
        first = self.outcomes.setdefault(line["outcome"], line)
        if first["value"] != line["value"]:
            self.contradictions.append((first["value"], line["value"]))

    def open(self) -> list[str]:
        """Acknowledged actions without an outcome, the oldest first."""
        return [action_id for action_id in self.accepted if action_id not in self.outcomes]


async def wait_for(arrivals: Arrivals, address: str, condition: Callable[[], bool]) -> None:
    """Waits until a condition holds.

    Raises:
        HangError: No line was added to the log for `QUIET_S` seconds; it says what the oldest open action waits for.
    """
    heard_at = anyio.current_time()
    while not condition():
        if arrivals.read():
            heard_at = anyio.current_time()
        elif anyio.current_time() - heard_at > QUIET_S:
            raise HangError(await _describe_hang(arrivals, address))
        else:
            await anyio.sleep(_POLL_S)


async def _describe_hang(arrivals: Arrivals, address: str) -> str:
    known = f"nothing arrived for {QUIET_S:g} s; {len(arrivals.outcomes)} outcomes so far"
    waiting = arrivals.open()
    if not waiting:
        return f"{known}, and no acknowledged action is open"
    async with AdminClient(address, ClientOptions(call_timeout_s=5.0)) as admin:
        explanation = await admin.explain(JOB, waiting[0])
    story = "".join(f"\n  {event.at:.3f} {event.event}" for event in explanation.story)
    return f"{known}; {len(waiting)} open, the oldest is {waiting[0]}: {explanation.explanation}{story}"


def read_starts(paths: list[Path]) -> dict[str, list[dict[str, Any]]]:
    """Every start of an attempt, by action."""
    starts: dict[str, list[dict[str, Any]]] = {}
    for path in paths:
        for line in path.read_text().splitlines():
            start = json.loads(line)
            starts.setdefault(start["action"], []).append(start)
    return starts


def check_starts(arrivals: Arrivals, starts: dict[str, list[dict[str, Any]]]) -> None:
    """Nothing that changes a sandbox was started twice, and nothing succeeded without a start."""
    repeated = {
        action_id: started
        for action_id, started in starts.items()
        if len(started) > 1 and action_id.rpartition("/")[2] in IN_SANDBOX
    }
    assert not repeated, f"started more than once in a sandbox: {repeated}"
    unstarted = [
        action_id
        for action_id, outcome in arrivals.outcomes.items()
        if outcome["type"] == "Succeeded" and action_id not in starts
    ]
    assert not unstarted, f"succeeded without a start: {unstarted}"


def check_outcomes(arrivals: Arrivals, total: int, *, may_lose_state: bool) -> Counter[str]:
    """All actions of the load have one outcome, and none failed but for a sandbox that died.

    Args:
        arrivals: What clients were told.
        total: Actions of the load.
        may_lose_state: Whether a manager was lost with its sandboxes.

    Returns:
        How often each thing became of an action.
    """
    assert not arrivals.contradictions, f"two different outcomes: {arrivals.contradictions[0]}"
    assert arrivals.open() == []
    assert len(arrivals.outcomes) == total
    counts: Counter[str] = Counter()
    for outcome in arrivals.outcomes.values():
        if outcome["type"] == "Succeeded":
            counts["succeeded"] += 1
            continue
        assert may_lose_state, outcome["value"]
        assert outcome["failure"] == ["infra", "state_lost"], outcome["value"]
        assert outcome["kind"] in IN_SANDBOX, outcome["value"]
        counts["state_lost"] += 1
    return counts


async def check_asked_again(arrivals: Arrivals, address: str) -> None:
    """A new client that asks for every outcome is told what the first one was told."""
    different: list[str] = []
    limiter = anyio.CapacityLimiter(_ASKERS)
    async with AdminClient(address) as admin, anyio.create_task_group() as tasks:

        async def ask(action_id: str) -> None:
            async with limiter:
                outcome = await admin.outcome(JOB, action_id)
            if outcome is None or canonical(outcome) != arrivals.outcomes[action_id]["value"]:
                different.append(f"{action_id}: {outcome!r}")

        for action_id in arrivals.outcomes:
            tasks.start_soon(ask, action_id)
    assert not different, different[:3]


async def check_nothing_leaked(address: str, job_id: str = JOB) -> SchedulerStatus:
    """Once the job is closed no attempt, sandbox or unit is left; returns the last status."""
    async with AdminClient(address) as admin:
        try:
            await admin.close_job(job_id)
        except NotFoundError as error:
            raise AssertionError("the job is not there") from error
        give_up_at = anyio.current_time() + QUIET_S
        while not _is_clean(status := await admin.status()):
            if anyio.current_time() > give_up_at:
                raise HangError(f"after {QUIET_S:g} s this is left: {status}")
            await anyio.sleep(_POLL_S)
    return status


def _is_clean(status: SchedulerStatus) -> bool:
    return (
        not status.jobs
        and all(manager.attempts == manager.sandboxes == 0 for manager in status.managers)
        and all(
            node.free[resource] + status.shared_units(node.node_id, resource) == units
            for node in status.nodes
            for resource, units in node.capacity.items()
        )
    )
