"""The services that are measured, as `callsheet up` starts them, and what one action of each kind is."""

from __future__ import annotations

import itertools
import json
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from callsheet.benchmarks.dispatch import noop_managers
from callsheet.benchmarks.dispatch.callsheet_load import CallsheetLoad
from callsheet.benchmarks.dispatch.settings import DispatchSettings, MeasuredKind
from callsheet.benchmarks.measuring.actions import NotMeasurableError, open_trajectories, sandbox_demand, succeeded
from callsheet.benchmarks.measuring.processes import Use, tree_cpu_s, use_of
from callsheet.client import Client, Command, Job, Outcome, Sampling, Trajectory
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import AUTO_GATEWAY, StackSettings
from callsheet.managers.supervision.processes import ProcessSpec, run_process
from typing_extensions import override

TOKENS = 64
"""Tokens of a prompt, and of a reply."""
_PROMPT = tuple(range(1, TOKENS + 1))
_SAMPLING = Sampling(max_new_tokens=TOKENS)
_TRUE = Command.argv("true")
# The gateway bounds them; a new one is opened as often as by an agent with so many turns.
_CHATS_OF_TRAJECTORY = 50
_RESETS_AT_ONCE = 8

_ROLES = {
    MeasuredKind.NOOP: Role.NOOP,
    MeasuredKind.ENV_STEP: Role.SANDBOX,
    MeasuredKind.ENV_RESET: Role.SANDBOX,
    MeasuredKind.GENERATE: Role.INFERENCE,
    MeasuredKind.CHAT: Role.INFERENCE,
}
_SCRIPT = {"replies": [{"random_tokens": TOKENS, "cut": True, "repeat": True}]}
_READY_S = 300.0

_MESSAGES = "callsheet_messages_total{"


@dataclass(slots=True)
class ActionsOfKind(ABC):
    """Actions of a kind.

    Attributes:
        job: An open job.
        prefix: Begins names.
        memory_mib: Of each sandbox.
        gateway: The URL of the gateway, if there is one.
        http: Asks it.
    """

    job: Job
    prefix: str
    memory_mib: int
    gateway: str | None
    http: aiohttp.ClientSession
    _numbers: itertools.count[int] = field(default_factory=itertools.count)
    _chats: Counter[int] = field(default_factory=Counter)

    async def make_lanes(self, lanes: int) -> None:
        """Makes what so many lanes need before their first actions: most need nothing."""
        del lanes

    @abstractmethod
    async def one(self, lane: int) -> float:
        """Does one action in a lane; returns its overhead in seconds, by the scheduler's clock, or 0.

        Raises:
            NotMeasurableError: It did not succeed.
        """


class _Noop(ActionsOfKind):
    _load: CallsheetLoad | None = None

    @override
    async def one(self, lane: int) -> float:
        if self._load is None:
            self._load = CallsheetLoad(self.job, self.prefix)
        return _overhead_s(await self._load.one())


class _EnvStep(ActionsOfKind):
    _trajectories: Sequence[Trajectory] = ()

    @override
    async def make_lanes(self, lanes: int) -> None:
        names = [f"{self.prefix}-{number}" for number in range(len(self._trajectories), lanes)]
        made = await open_trajectories(self.job, names, self.memory_mib, _RESETS_AT_ONCE)
        self._trajectories = (*self._trajectories, *made)

    @override
    async def one(self, lane: int) -> float:
        return _overhead_s(await self._trajectories[lane].env_step(_TRUE))


class _EnvReset(ActionsOfKind):
    @override
    async def one(self, lane: int) -> float:
        async with self.job.trajectory(f"{self.prefix}-{next(self._numbers)}") as trajectory:
            return _overhead_s(await trajectory.env_reset(demand=sandbox_demand(self.memory_mib)))


class _Generate(ActionsOfKind):
    @override
    async def one(self, lane: int) -> float:
        return _overhead_s(await self.job.generate(_PROMPT, _SAMPLING))


class _Chat(ActionsOfKind):
    @override
    async def one(self, lane: int) -> float:
        number = self._chats[lane]
        self._chats[lane] += 1
        trajectory = f"{self.prefix}-{lane}-{number // _CHATS_OF_TRAJECTORY}"
        asked = {"role": "user", "content": f"Question {number:020d}, to which the answer is of no importance."}
        async with self.http.post(
            f"{self.gateway}/v1/chat/completions",
            json={"model": "policy", "messages": [asked], "max_tokens": TOKENS},
            headers={"authorization": f"Bearer {self.job.job_id}/{trajectory}"},
        ) as answer:
            told = await answer.read()
        if answer.status != 200:
            raise NotMeasurableError(f"the gateway answered a chat with {answer.status}: {told[:500]!r}")
        return 0.0


ACTIONS: dict[MeasuredKind, type[ActionsOfKind]] = {
    MeasuredKind.NOOP: _Noop,
    MeasuredKind.ENV_STEP: _EnvStep,
    MeasuredKind.ENV_RESET: _EnvReset,
    MeasuredKind.GENERATE: _Generate,
    MeasuredKind.CHAT: _Chat,
}


def _overhead_s(outcome: Outcome[Any]) -> float:
    succeeded(outcome)
    return outcome.timeline.overhead_s


@dataclass(frozen=True, slots=True)
class MeasuredService:
    """A running service.

    Attributes:
        work: Actions for it.
        processes: Its processes, and this one as "client", by name.
        metrics_url: The scheduler's.
    """

    work: ActionsOfKind
    processes: Mapping[str, int]
    metrics_url: str

    def uses(self) -> dict[str, Use]:
        """Returns the use of each process so far, and "rest", the use of all processes below the manager."""
        manager = psutil.Process(self.processes["manager"])
        ended = manager.cpu_times()
        rest = tree_cpu_s(manager.children()) + ended.children_user + ended.children_system
        return {"rest": Use(rest, 0)} | {name: use_of(pid) for name, pid in self.processes.items()}

    async def messages(self) -> float:
        """gRPC messages that the scheduler has read and written."""
        async with self.work.http.get(self.metrics_url) as answer:
            page = await answer.text()
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(_MESSAGES))


def give_own_core(processes: Mapping[str, int]) -> None:
    """Has the threads of the scheduler run on the first core and all others on the rest."""
    own, *others = sorted(os.sched_getaffinity(0))
    for name, pid in processes.items():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {own} if name == "scheduler" else others)


@asynccontextmanager
async def running_service(settings: DispatchSettings, prefix: str, directory: Path) -> AsyncIterator[MeasuredService]:
    """Runs the service for the kind of the settings.

    Args:
        settings: Which kind, and of how many managers.
        prefix: Begins names.
        directory: For its files.

    Raises:
        ProcessFailedError: A process did not start (inside an exception group).
    """
    kind, role = settings.kind, _ROLES[settings.kind]
    script = directory / "script.json"
    script.write_text(json.dumps(_SCRIPT), encoding="utf-8")
    given: Mapping[Role, Mapping[str, object]] = {
        Role.SANDBOX: {"isolation": settings.isolation},
        Role.INFERENCE: {"engine": "scripted", "script": script},
    }
    in_one = settings.managers > 1
    stack_settings = StackSettings(
        directory / "callsheet",
        managers=() if in_one else (role,),
        gateway=AUTO_GATEWAY if kind is MeasuredKind.CHAT else None,
        given=given.get(role, {}),
    )
    async with AsyncExitStack() as exits:
        stack = await exits.enter_async_context(local_stack(stack_settings))
        processes = {"scheduler": stack.pid(Role.SCHEDULER), "client": os.getpid()}
        if in_one:
            arguments = ("--scheduler", stack.address, "--managers", str(settings.managers))
            log = directory / "managers.log"
            spec = ProcessSpec("managers", noop_managers.__name__, arguments, log_path=log, ready_timeout_s=_READY_S)
            processes["manager"] = (await exits.enter_async_context(run_process(spec))).pid
        else:
            processes["manager"] = stack.pid(role)
        if stack.gateway_url is not None:
            processes["gateway"] = stack.pid(Role.GATEWAY)
        client = await exits.enter_async_context(Client(stack.address))
        job = await exits.enter_async_context(await client.open_job(f"dispatch-{prefix}"))
        connector = aiohttp.TCPConnector(limit=0)
        http = await exits.enter_async_context(aiohttp.ClientSession(connector=connector))
        work = ACTIONS[kind](job, prefix, settings.memory_mib, stack.gateway_url, http)
        if settings.own_core:
            give_own_core(processes)
        yield MeasuredService(work, processes, stack.metrics_url or "")
