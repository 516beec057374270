"""The services that are measured: processes as `callsheet up` starts them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import psutil
from callsheet.benchmarks.dispatch import noop_managers
from callsheet.benchmarks.dispatch.kinds import ACTIONS, TOKENS, ActionsOfKind
from callsheet.benchmarks.dispatch.settings import DispatchSettings, MeasuredKind
from callsheet.benchmarks.measuring.processes import Use, tree_cpu_s, use_of
from callsheet.client import Client
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import AUTO_GATEWAY, StackSettings
from callsheet.managers.supervision.processes import ProcessSpec, run_process

_ROLES = {
    MeasuredKind.NOOP: Role.NOOP,
    MeasuredKind.ENV_STEP: Role.SANDBOX,
    MeasuredKind.ENV_RESET: Role.SANDBOX,
    MeasuredKind.GENERATE: Role.INFERENCE,
    MeasuredKind.CHAT: Role.INFERENCE,
}
_SCRIPT = {"replies": [{"random_tokens": TOKENS, "cut": True, "repeat": True}]}
_READY_S = 300.0


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
        """What each process has used so far, and "rest", which is all below the manager: agents and what makes them."""
        manager = psutil.Process(self.processes["manager"])
        ended = manager.cpu_times()
        rest = tree_cpu_s(manager.children()) + ended.children_user + ended.children_system
        return {"rest": Use(rest, 0)} | {name: use_of(pid) for name, pid in self.processes.items()}

    async def messages(self) -> float:
        """gRPC messages that the scheduler has read and written."""
        async with self.work.http.get(self.metrics_url) as answer:
            page = await answer.text()
        return sum(float(line.rpartition(" ")[2]) for line in page.splitlines() if line.startswith(_MESSAGES))


_MESSAGES = "callsheet_messages_total{"


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
        yield MeasuredService(work, processes, stack.metrics_url or "")
