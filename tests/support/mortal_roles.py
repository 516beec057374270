"""The command lines of server processes, and the work that each of them is in the middle of."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp
from callsheet.client import (
    Command,
    ConversationText,
    Job,
    Sampling,
    Tensors,
    ToolCall,
    Unservable,
)
from callsheet.deploy.signals import LONGEST_END_S
from callsheet.deploy.stack import LONGEST_STACK_END_S

from tests.support.contract_model import save_contract_weights
from tests.support.e2b_servers import KEY, E2bCaller
from tests.support.gateways import CHAT, chat, script
from tests.support.mortal_processes import DRAIN_S, FACADE_TOKEN, MortalRole, World
from tests.support.real_sandboxes import processes
from tests.support.waiting import until, until_so


def _words(*words: str) -> Callable[[World], tuple[str, ...]]:
    return lambda world: tuple(word.format(place=world.place, w=world) for word in words)


def _manager(kind: str, *words: str) -> Callable[[World], tuple[str, ...]]:
    def of(world: World) -> tuple[str, ...]:
        own = ("manager", kind, "--scheduler", world.scheduler, "--manager-id", world.place.name, "--cpus", "2")
        return (*own, "--drain-timeout", str(DRAIN_S), *(word.format(place=world.place, w=world) for word in words))

    return of


async def _napping(world: World, count: int) -> None:
    await until(lambda: len(processes("sleep", world.nap)) == count, every_s=0.02)


async def _sandbox_work(world: World) -> None:
    """A command, and a set-up whose files are half there."""
    first, second = (world.open_job.trajectory(name) for name in ("first", "second"))
    await first.open()
    (await first.env_reset()).unwrap()
    world.begin(lambda: first.env_step(Command.argv("sleep", world.nap)))
    await second.open()
    world.begin(lambda: second.env_reset(set_up=Command.shell(f"echo half > half; sleep {world.nap}")))
    await _napping(world, 2)


async def _tool_work(world: World) -> None:
    """A function that hangs, with a process of a session of its own."""
    world.begin(lambda: world.open_job.tool_call("hang", "call", json.dumps({"seconds": world.nap}).encode()))
    await _napping(world, 1)


async def _reward_work(world: World) -> None:
    """Questions without end for a model whose weights are kept as a copy."""

    async def ask() -> None:
        while True:
            await world.open_job.reward_model(model="copied", text=ConversationText("What?", "That."))

    world.begin(ask)
    await until(lambda: any(world.temporary.rglob("model.safetensors")))


async def _weights_work(world: World) -> None:
    """An update that waits for a reply, with its tensors in a file."""
    from callsheet.managers.models.config import TransformerConfig
    from safetensors.torch import save

    from tests.support.torch_models import small_model

    tensors = Tensors(save(dict(small_model(1, TransformerConfig()).state_dict())))
    world.begin(lambda: world.open_job.generate([*b"endless"], Sampling(max_new_tokens=1000, ignore_eos=True)))
    await _generating(world.open_job)
    world.begin(lambda: world.open_job.publish(1, tensors))
    await until(lambda: any(world.temporary.rglob("weights.safetensors")))


async def _launched_work(world: World) -> None:
    """A reply of a server that the manager launched."""
    world.begin(lambda: world.open_job.generate([1, 2, 3], Sampling(max_new_tokens=64)))
    await until(lambda: all((world.place / "launch" / f"{name}.pid").exists() for name in ("server", "child")))


async def _scheduler_work(world: World) -> None:
    """Payloads that are on their way."""
    incoming = world.place / "data" / "payloads" / "incoming"

    async def put() -> None:
        while True:
            await world.open_job.submit(ToolCall("nobody", "call", os.urandom(32 << 20)), unservable=Unservable.WAIT)

    world.begin(put)
    await until(lambda: any(map(has_bytes, incoming.glob("*"))))


def has_bytes(path: Path) -> bool:
    """Whether a file is there and has some."""
    with suppress(FileNotFoundError):
        return path.stat().st_size > 0
    return False


async def _gateway_work(world: World) -> None:
    """A stream that is open, and gets what the model says at its end."""
    trajectory = world.open_job.trajectory("agent")
    await trajectory.open()
    access = await trajectory.gateway()

    async def stream() -> None:
        headers = {"authorization": f"Bearer {access.api_key}"}
        async with aiohttp.ClientSession() as session:
            body = chat("endless", stream=True, max_tokens=2000)
            async with session.post(f"{access.url}{CHAT}", json=body, headers=headers) as answer:
                await answer.read()

    world.begin(stream)
    await _generating(world.open_job)


async def _generating(job: Job) -> None:
    await until_so(job.status, lambda it: it.actions.get("running", 0) >= 1, every_s=0.02)


async def _e2b_work(world: World) -> None:
    """A command of a sandbox."""

    async def run() -> None:
        async with aiohttp.ClientSession() as session:
            sandbox = await E2bCaller(session, world.facts["address"]).create()
            await sandbox.run(f"sleep {world.nap}", timeout_s=None)

    world.begin(run)
    await _napping(world, 1)


async def _swerex_work(world: World) -> None:
    """The same by SWE-ReX's protocol."""

    async def run() -> None:
        headers = {"X-API-Key": KEY}
        async with aiohttp.ClientSession(headers=headers) as session:
            command: dict[str, Any] = {"command": ["sleep", world.nap], "timeout": None}
            async with session.post(f"http://{world.facts['address']}/one/execute", json=command) as answer:
                await answer.read()

    world.begin(run)
    await _napping(world, 1)


async def _up_work(world: World) -> None:
    """All of it at once, without what takes seconds to load."""
    await _sandbox_work(world)
    world.begin(lambda: world.open_job.generate([*b"endless"], Sampling(max_new_tokens=2000)))
    world.begin(lambda: world.open_job.tool_call("hang", "call", json.dumps({"seconds": world.nap}).encode()))
    await _napping(world, 3)


def write_inputs(role: MortalRole, place: Path) -> None:
    """Writes what a role is given."""
    (place / "script.json").write_text(json.dumps(script()))
    (place / "tools.toml").write_text('[tools.hang]\nfunction = "tests.support.hanging_tool:hang"\n')
    if role.name == "launched":
        (place / "launch").mkdir()
        save_contract_weights(place / "launch" / "weights", 0)
    if role.name == "reward":
        from tests.support.hosted_models import make_model, rename_weights

        spec = make_model(place, "gpt2", seed=3)
        rename_weights(spec)
        spec.directory.rename(place / "model")


_FACADE = ("--listen", "127.0.0.1:{w.port}", "--job-id", "facade")
_SCRIPTED = ("--engine", "scripted", "--script", "{place}/script.json")
_TOOLS = ("--tools-file", "{place}/tools.toml")
_SANDBOXES = ("--data-dir", "{place}/data", "--isolation", "{w.isolation}")
_LAUNCH = f"{sys.executable} -m tests.support.launched_engine {{place}}/launch/weights {{place}}/launch"
_HOSTED = ("--no-test-suites", "--data-dir", "{place}/data", "--model", "copied={place}/model", "--model-threads", "1")
ROLES = (
    MortalRole(
        "scheduler",
        _words("scheduler", "--listen", "127.0.0.1:0", "--data-dir", "{place}/data"),
        _scheduler_work,
        schedules=True,
        limit_s=LONGEST_END_S,
    ),
    MortalRole("sandbox", _manager("sandbox", *_SANDBOXES), _sandbox_work),
    MortalRole("tools", _manager("tools", *_TOOLS), _tool_work),
    MortalRole("inference", _manager("inference", "--engine", "torch", "--engine-threads", "1"), _weights_work),
    MortalRole("launched", _manager("inference", "--engine", "sglang", "--launch", _LAUNCH), _launched_work),
    MortalRole("reward", _manager("reward", *_HOSTED, "--memory-budget-mib", "64"), _reward_work),
    MortalRole(
        "gateway",
        _words("gateway", "--scheduler", "{w.scheduler}", "--listen", "127.0.0.1:0", "--data-dir", "{place}/data"),
        _gateway_work,
        ("inference",),
        limit_s=LONGEST_END_S,
    ),
    MortalRole(
        "e2b",
        _words("facade", "e2b", "--scheduler", "{w.scheduler}", *_FACADE),
        _e2b_work,
        ("sandbox",),
        FACADE_TOKEN,
        limit_s=LONGEST_END_S,
    ),
    MortalRole(
        "swerex",
        _words("facade", "swerex", "--scheduler", "{w.scheduler}", *_FACADE),
        _swerex_work,
        ("sandbox",),
        FACADE_TOKEN,
        limit_s=LONGEST_END_S,
    ),
    MortalRole(
        "up",
        _words(
            *("up", "--json", "--gateway", "auto", "--listen", "127.0.0.1:0", "--drain-s", str(DRAIN_S)),
            *("--managers", "sandbox,inference,tools", *_SANDBOXES, *_SCRIPTED, *_TOOLS),
        ),
        _up_work,
        schedules=True,
        limit_s=DRAIN_S + LONGEST_STACK_END_S,
        managers=3,
    ),
)
