"""A load of trajectories in a closed loop, as a client process: `python -m tests.support.rollouts LOAD_AS_JSON`.

What it does next depends only on its arguments and on outcomes. So a process that is started again after it was killed
submits the same actions under the same ids, attaches to those that the scheduler knows, and must be told the same.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import anyio
from callsheet.client import (
    Action,
    ActionHandle,
    Client,
    ClientOptions,
    Command,
    Cost,
    Demand,
    EnvReset,
    EnvStep,
    Failed,
    Generate,
    Outcome,
    Retry,
    RewardModel,
    RewardTests,
    Succeeded,
    ToolCall,
    Trajectory,
    Unservable,
    Where,
)
from callsheet.deploy.child import ParentLink

JOB = "load"
SERVICE = "noop"
_RETRY = Retry(max_attempts=20, initial_backoff_s=0.01, max_backoff_s=0.1)
_OPTIONS = ClientOptions(
    connect_timeout_s=600.0,
    backoff_initial_s=0.02,
    backoff_max_s=0.2,
    channel_options=(("grpc.max_reconnect_backoff_ms", 200),),
)
_CYCLE = ("generate", "env_step", "tool_call", "reward_in_sandbox", "env_step", "reward_model")
_SHORT_S = 0.01
_LONG_S = 1.5
_LONG_SHARE = 0.06
IN_SANDBOX = frozenset({"env_step", "reward_in_sandbox"})


@dataclass(frozen=True)
class Load:
    """What to run.

    Attributes:
        address: The scheduler's.
        seed: Of the execution times.
        trajectories: How many at once.
        actions: In each trajectory, one after another.
        log: Gets one line of JSON for every acknowledgement and every outcome that arrives.
    """

    address: str
    seed: int
    trajectories: int
    actions: int
    log: str

    @property
    def total(self) -> int:
        """Actions in all."""
        return self.trajectories * self.actions


class ArrivalLog:
    """Writes what arrived, at once, so that nothing is forgotten when the process is killed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def accepted(self, action_id: str) -> None:
        """The scheduler acknowledged the submit."""
        self._write({"accepted": action_id})

    def outcome(self, action_id: str, kind: str, outcome: Outcome[Any]) -> None:
        """The outcome arrived."""
        failure = [outcome.kind.value, outcome.reason] if isinstance(outcome, Failed) else None
        self._write(
            {
                "outcome": action_id,
                "kind": kind,
                "type": type(outcome).__name__,
                "failure": failure,
                "value": canonical(outcome),
            }
        )

    def _write(self, line: dict[str, object]) -> None:
        os.write(self._descriptor, json.dumps(line).encode() + b"\n")


@contextmanager
def _open_log(path: str) -> Iterator[ArrivalLog]:
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        yield ArrivalLog(descriptor)
    finally:
        os.close(descriptor)


def canonical(outcome: Outcome[Any]) -> str:
    """The whole outcome as text, equal for equal outcomes: mappings come in no order."""
    cost = outcome.usage.cost
    in_order = Cost(dict(sorted(cost.held.items())), dict(sorted(cost.used.items())))
    return repr(replace(outcome, usage=replace(outcome.usage, cost=in_order)))


async def run_load(load: Load) -> None:
    """Runs every trajectory to its end. The job is opened and left open."""
    with _open_log(load.log) as log:
        async with Client(load.address, _OPTIONS) as client:
            job = await client.open_job(JOB)
            async with anyio.create_task_group() as tasks:
                for number in range(load.trajectories):
                    tasks.start_soon(_roll_out, load, job.trajectory(f"t-{number}"), number, log)


async def _roll_out(load: Load, trajectory: Trajectory, number: int, log: ArrivalLog) -> None:
    await trajectory.open()
    has_sandbox = False
    for index in range(load.actions):
        kind = _CYCLE[(index + number) % len(_CYCLE)] if has_sandbox else "env_reset"
        action_id = f"{trajectory.trajectory_id}/{index}/{kind}"
        handle = await _submit(load, trajectory, kind, action_id)
        await handle.accepted()
        log.accepted(action_id)
        outcome = await handle.outcome()
        log.outcome(action_id, kind, outcome)
        if kind == "env_reset" or kind in IN_SANDBOX:
            has_sandbox = isinstance(outcome, Succeeded)
    if number % 2:
        await trajectory.close()


async def _submit(load: Load, trajectory: Trajectory, kind: str, action_id: str) -> ActionHandle[Any]:
    actions: dict[str, Action[Any]] = {
        "env_reset": EnvReset(service=SERVICE),
        "generate": Generate([1, 2, 3], model=SERVICE),
        "env_step": EnvStep(Command.argv("true")),
        "tool_call": ToolCall(SERVICE, "nothing", idempotent=True),
        "reward_in_sandbox": RewardTests("true", where=Where.IN_SANDBOX, service=SERVICE),
        "reward_model": RewardModel([1], model=SERVICE),
    }
    chance = random.Random(f"{load.seed}/{action_id}")
    # Some run for longer than a scheduler takes to come back; those need no core, so that nothing waits for them.
    is_long = chance.random() < _LONG_SHARE
    duration = chance.uniform(0.0, _LONG_S if is_long else _SHORT_S)
    return await trajectory.submit(
        actions[kind],
        action_id=action_id,
        demand=Demand() if is_long else None,
        expected_duration_s=duration,
        retry=_RETRY,
        # While managers are away nobody serves anything.
        unservable=Unservable.WAIT,
    )


def main() -> None:
    """Runs the load that the first argument describes."""
    link = ParentLink.adopt()
    load = Load(**json.loads(sys.argv[1]))
    link.report_ready()
    anyio.run(run_load, load)


def to_argument(load: Load) -> str:
    """The command line of the process."""
    return json.dumps(asdict(load))


if __name__ == "__main__":
    main()
