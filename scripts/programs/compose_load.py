"""A load for the stack of docker-compose.yml, and the accounts of all its actions.

`scripts/compose_smoke.py` runs it in the demo's container. It rolls trajectories out until its standard input ends. It
prints one JSON object a line: `trajectory` for each that ended, `accounts` at last. Services are killed meanwhile, so
an action may fail with INFRA, a submit may find its payload's store away, and a call may find no gateway. Nothing else
may go wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import ssl
import sys
import urllib.request
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio
import anyio.to_thread
from callsheet.client import (
    CallsheetError,
    Client,
    Cost,
    Failed,
    FailureKind,
    Job,
    Outcome,
    Sampling,
    SandboxFile,
    Succeeded,
    Trajectory,
    Where,
)
from callsheet.client.admin import AdminClient
from callsheet.client.gateway import GatewayAccess, PromptDrift
from callsheet.client.session.target import from_environment

JOB = "demo"
WORKERS = 3
STEPS = 3
# More than fits into a message: it takes the way through the store of payloads.
FILE_BYTES = 200_000
PROMPT = list(b"How many steps were there?")
CALLS = 2
REPLY_TOKENS = 8
AWAY_S = 0.5
CALL_S = 60.0


class TrajectoryLostError(Exception):
    """A trajectory cannot go on, as one of its actions did not succeed."""


@dataclass
class Accounts:
    """What became of all actions.

    Attributes:
        outcomes: By action id, as they came.
        refused: Errors of submits that no outcome came of.
        wrong: What must not have happened, as sentences.
    """

    outcomes: dict[str, Outcome[Any]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    async def take(self, action_id: str, action: Awaitable[Outcome[Any]]) -> Any:
        """Waits for an outcome and returns its value.

        Raises:
            TrajectoryLostError: There is none.
        """
        try:
            outcome = await action
        except CallsheetError as error:
            self.refused.append(f"{action_id}: {type(error).__name__}: {error}")
            raise TrajectoryLostError from error
        if action_id in self.outcomes:
            self.wrong.append(f"{action_id}: a second outcome")
        self.outcomes[action_id] = outcome
        if isinstance(outcome, Succeeded):
            return outcome.value
        if not (isinstance(outcome, Failed) and outcome.kind is FailureKind.INFRA):
            self.wrong.append(f"{action_id}: {outcome}")
        raise TrajectoryLostError

    def expect(self, action_id: str, found: object, wanted: object) -> None:
        """Notes a value that is not what it must be."""
        if found != wanted:
            self.wrong.append(f"{action_id}: {found!r} in place of {wanted!r}")

    def as_json(self) -> dict[str, Any]:
        """All of it, counted."""
        kinds = Counter(
            f"{outcome.kind.value} {outcome.reason}" if isinstance(outcome, Failed) else type(outcome).__name__.lower()
            for outcome in self.outcomes.values()
        )
        failures = [f"{name}: {each}" for name, each in self.outcomes.items() if isinstance(each, Failed)]
        told = {"failures": failures, "refused": self.refused, "wrong": self.wrong}
        return {"actions": len(self.outcomes), "kinds": kinds, **told}


async def roll_out(job: Job, name: str, accounts: Accounts) -> None:
    """One trajectory that counts its steps in its sandbox, finds no secrets there, and is rewarded for the count."""
    content = os.urandom(FILE_BYTES)
    async with job.trajectory(name) as trajectory:
        files = [SandboxFile("data", content)]
        action_id = f"{name}/reset"
        reset = await accounts.take(
            action_id, trajectory.env_reset(files=files, set_up="sha256sum <data", action_id=action_id)
        )
        accounts.expect(action_id, reset.set_up.stdout[:64], hashlib.sha256(content).hexdigest().encode())
        for step in range(1, STEPS + 1):
            action_id = f"{name}/generate-{step}"
            turn = await accounts.take(
                action_id, trajectory.generate(PROMPT, Sampling(max_new_tokens=8), action_id=action_id)
            )
            accounts.expect(action_id, len(turn.token_ids), 8)
            action_id = f"{name}/step-{step}"
            # No secret is there to be printed.
            command = f"echo {step} >>steps; cat steps /run/secrets/* 2>&-"
            done = await accounts.take(action_id, trajectory.env_step(command, action_id=action_id))
            accounts.expect(action_id, done.stdout.split(), [str(each + 1).encode() for each in range(step)])
        await converse(trajectory, name, accounts)
        action_id = f"{name}/tests"
        suite = trajectory.reward_tests(f"test $(wc -l <steps) = {STEPS}", where=Where.IN_SANDBOX, action_id=action_id)
        accounts.expect(action_id, (await accounts.take(action_id, suite)).score, 1.0)
    action_id = f"{name}/scorer"
    scored = await accounts.take(action_id, job.reward_model(PROMPT, action_id=action_id))
    accounts.expect(action_id, isinstance(scored.score, float), True)


async def converse(trajectory: Trajectory, name: str, accounts: Accounts) -> None:
    """Speaks to the model as an agent does, and finds each sampled token once in one sample."""
    try:
        access = await trajectory.gateway(max_tokens=REPLY_TOKENS)
        messages = [{"role": "user", "content": "How many steps were there?"}]
        sampled = 0
        for _ in range(CALLS):
            reply, tokens = await anyio.to_thread.run_sync(chat, access, messages)
            messages += [reply, {"role": "user", "content": "Are you sure?"}]
            sampled += tokens
        found = await trajectory.samples()
    except (CallsheetError, OSError) as error:
        accounts.refused.append(f"{name}/gateway: {type(error).__name__}: {error}")
        raise TrajectoryLostError from error
    accounts.expect(f"{name}/gateway", [turn.drift for turn in found.turns], [PromptDrift.CLEAN] * CALLS)
    accounts.expect(f"{name}/gateway", [sum(each.loss_mask) for each in found.samples], [sampled])


def chat(access: GatewayAccess, messages: list[dict[str, str]]) -> tuple[dict[str, str], int]:
    """Returns the model's message and its tokens' number, as a client of chat completions gets them. Blocks."""
    body = json.dumps({"model": "callsheet", "messages": messages}).encode()
    headers = {"authorization": f"Bearer {access.api_key}", "content-type": "application/json"}
    request = urllib.request.Request(f"{access.base_url}/chat/completions", body, headers)
    context = ssl.create_default_context(cafile=os.environ["CALLSHEET_TLS_CA"])
    with urllib.request.urlopen(request, timeout=CALL_S, context=context) as answer:
        found = json.load(answer)
    message = {"role": "assistant", "content": found["choices"][0]["message"]["content"]}
    return message, found["usage"]["completion_tokens"]


async def work(job: Job, worker: int, accounts: Accounts, stop: anyio.Event) -> None:
    """Rolls trajectories out, one after another."""
    number = 0
    while not stop.is_set():
        number += 1
        name = f"{worker}-{number}"
        try:
            await roll_out(job, name, accounts)
            ended = "completed"
        except (TrajectoryLostError, CallsheetError):
            ended = "lost"
            await anyio.sleep(AWAY_S)
        print(json.dumps({"trajectory": name, "end": ended}), flush=True)


async def ask_again(accounts: Accounts) -> None:
    """A new client that asks for every outcome is told what the first one was told."""
    target, options = from_environment(os.environ)
    async with AdminClient(target, options) as admin:
        for action_id, outcome in accounts.outcomes.items():
            again = await admin.outcome(JOB, action_id)
            if again is None or canonical(again) != canonical(outcome):
                accounts.wrong.append(f"{action_id}: {again} in place of {outcome}")


def canonical(outcome: Outcome[Any]) -> str:
    """The whole outcome as text, equal for equal outcomes: mappings come in no order."""
    cost = outcome.usage.cost
    in_order = Cost(dict(sorted(cost.held.items())), dict(sorted(cost.used.items())))
    return repr(replace(outcome, usage=replace(outcome.usage, cost=in_order)))


async def main() -> None:
    """Runs until the standard input ends."""
    accounts = Accounts()
    stop = anyio.Event()
    async with Client.from_env() as client, await client.open_job(JOB) as job:
        async with anyio.create_task_group() as tasks:
            for worker in range(WORKERS):
                tasks.start_soon(work, job, worker, accounts, stop)
            await anyio.to_thread.run_sync(sys.stdin.read)
            stop.set()
        await ask_again(accounts)
    print(json.dumps({"accounts": accounts.as_json()}), flush=True)


if __name__ == "__main__":
    anyio.run(main)
