"""Server processes in the middle of their work, for tests that kill them or have them end, and what they leave."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import aiohttp
import anyio
import anyio.abc
import psutil
from callsheet.client import (
    CallsheetError,
    Client,
    Job,
    NotFoundError,
)
from callsheet.client.admin import AdminClient
from callsheet.client.gateway import DEFAULT_GATEWAY
from callsheet.client.settings import ClientOptions
from callsheet.managers.sandbox.cgroups import probe_layout
from callsheet.managers.settings import ManagerSettings
from callsheet.managers.supervision.remains import processes_with
from callsheet.v1.manager_service_pb2 import NodeSpec

from tests.support.e2b_servers import KEY
from tests.support.ports import free_port
from tests.support.waiting import WAIT_S, until_so

ROOT = Path(__file__).resolve().parents[2]
_NUMBERS = itertools.count(1)
MARK = "CALLSHEET_TEST_MORTAL"
# For a process to be started anew and looked at, on a machine that has little time for it.
_SLACK_S = 5.0
DRAIN_S = 1.0
FACADE_TOKEN = {"CALLSHEET_FACADE_TOKEN": KEY}
MANAGER_S = ManagerSettings("unused", "unused", NodeSpec(node_id="unused"), drain_timeout_s=DRAIN_S).longest_end_s


def next_nap() -> str:
    """Seconds that nothing else sleeps."""
    return f"{86_400 + next(_NUMBERS)}.{os.getpid()}"


@dataclass
class World:
    """Where a role works.

    Attributes:
        place: Its directory: `data` is its data directory, and `tmp` that of temporary files.
        scheduler: Address of the scheduler that it has.
        isolation: Of sandboxes.
        facts: What it said when it was ready.
        job: Where its work comes from.
        tasks: Where that waits.
        nap: Seconds that its commands sleep, as no others do.
        port: Where a facade listens.
    """

    place: Path
    scheduler: str
    isolation: str
    facts: Mapping[str, str] = field(default_factory=dict)
    job: Job | None = None
    tasks: anyio.abc.TaskGroup | None = None
    nap: str = field(default_factory=next_nap)
    port: int = field(default_factory=free_port)

    def begin(self, call: Callable[[], Awaitable[object]]) -> None:
        """Begins what ends with the process."""

        async def quietly() -> None:
            with suppress(CallsheetError, aiohttp.ClientError, EOFError):
                await call()

        assert self.tasks is not None
        self.tasks.start_soon(quietly)

    @property
    def open_job(self) -> Job:
        """The job."""
        assert self.job is not None
        return self.job

    @property
    def temporary(self) -> Path:
        """Where its temporary files are."""
        return self.place / "tmp"


@dataclass(frozen=True)
class MortalRole:
    """A role.

    Attributes:
        name: For people.
        words: Its command line after `callsheet`.
        work: Begins work, and returns in the middle of it.
        beside: Managers that its scheduler needs for that.
        environment: More of its environment.
        schedules: Whether its clients call it, and not a scheduler beside it.
        limit_s: In which it ends on SIGTERM, whatever does not answer.
        managers: So many it starts by itself.
    """

    name: str
    words: Callable[[World], tuple[str, ...]]
    work: Callable[[World], Awaitable[None]]
    beside: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    schedules: bool = False
    limit_s: float = MANAGER_S
    managers: int = 0


@dataclass
class MortalProcess:
    """A running server.

    Attributes:
        process: Its handle.
        facts: What it said when it was ready.
    """

    process: anyio.abc.Process
    facts: Mapping[str, str]

    async def kill(self) -> list[psutil.Process]:
        """Kills it, and returns the processes that it had started."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        self.process.kill()
        await self.process.wait()
        return below

    def below(self) -> list[psutil.Process]:
        """It, and all processes below it."""
        own = psutil.Process(self.process.pid)
        return [own, *own.children(recursive=True)]

    async def end(self, limit_s: float) -> float:
        """Asks it to end, and returns the seconds that it took.

        Raises:
            TimeoutError: It did not end within its limit.
        """
        began = anyio.current_time()
        self.process.send_signal(signal.SIGTERM)
        with anyio.fail_after(limit_s + _SLACK_S):
            await self.process.wait()
        return anyio.current_time() - began


@asynccontextmanager
async def mortal_process(role: MortalRole, world: World) -> AsyncIterator[MortalProcess]:
    """Runs a server for the length of a `with` block, at whose end it is killed if it runs; ready at the beginning."""
    world.temporary.mkdir(exist_ok=True)
    ready, tells = os.pipe()
    own = {"TMPDIR": str(world.temporary), MARK: str(world.place), "PYTHONPATH": str(ROOT), **role.environment}
    told = {} if role.name == "up" else {"CALLSHEET_READY_FD": str(tells)}
    log = (world.place / f"{role.name}.log").open("ab")
    process = await anyio.open_process(
        [sys.executable, "-m", "callsheet.cli.main", *role.words(world)],
        stdin=None,
        stdout=tells if role.name == "up" else log,
        stderr=log,
        env={**os.environ, **own, **told},
        pass_fds=(tells,),
    )
    os.close(tells)
    log.close()
    try:
        with os.fdopen(ready, "rb") as reader, anyio.fail_after(WAIT_S):
            await anyio.wait_readable(reader)
            line = reader.readline()
        assert line, f"{role.name} ended: {(world.place / f'{role.name}.log').read_text()[-2000:]}"
        world.facts = json.loads(line)
        yield MortalProcess(process, world.facts)
    finally:
        if process.returncode is None:
            process.kill()
        with anyio.CancelScope(shield=True):
            await process.wait()


async def registered(role: MortalRole, world: World) -> None:
    """Waits until all managers of a role have registered that has some: it is ready before they are."""
    if role.managers:
        async with AdminClient(world.facts["address"]) as admin:
            await until_so(admin.status, lambda it: len(it.managers) >= role.managers, every_s=0.05)


async def sandboxes_left(role: MortalRole, world: World) -> list[str]:
    """The open trajectories of a facade."""
    if role.environment != FACADE_TOKEN:
        return []
    async with Client(world.scheduler) as client:
        return [each.trajectory_id for each in await client.job("facade").trajectories()]


@asynccontextmanager
async def at_work(role: MortalRole, world: World, round_number: int) -> AsyncIterator[None]:
    """Has a server work, in a job of its own, for the length of a `with` block."""
    address = world.facts["address"] if role.schedules else world.scheduler
    options = ClientOptions(gateway=world.facts.get("url", DEFAULT_GATEWAY), close_timeout_s=2.0)
    async with Client(address, options) as client, anyio.create_task_group() as tasks:
        if role.schedules:
            # It came back with its scheduler's journal, and would go on.
            with suppress(NotFoundError):
                await client.job(f"{role.name}-{round_number - 1}").close()
        world.job, world.tasks = await client.open_job(f"{role.name}-{round_number}"), tasks
        world.nap = next_nap()
        with anyio.fail_after(WAIT_S):
            await role.work(world)
        yield
        tasks.cancel_scope.cancel()
        if not role.schedules:
            with anyio.CancelScope(shield=True):
                await world.job.close()


# What is left


_KEPT = re.compile(
    r"[^/]+\.(json|toml|log)|(launch|model|data|tmp)|data/logs|(launch|model|data/logs)/.*"
    # The journal, calls, payloads and layers.
    r"|data/([a-z]+\.sqlite3(-shm|-wal)?|scheduler\.lock|audit\.jsonl(\.1|\.lock)?|[a-z]*\.?key)"
    r"|data/payloads(/incoming|/(jobs|objects|owners)(/.*)?)?|data/(sandboxes|layers)(/[^/]+(/lock)?)?"
    r"|data/layers/[^/]+/set-up-[^/]+(/.*)?"
)
Remains: TypeAlias = dict[str, list[str]]


def left(world: World, role: MortalRole, started: Collection[psutil.Process]) -> Remains:
    """What is on the machine that a role made and does not keep on purpose.

    Args:
        world: Where it worked.
        role: Which it is.
        started: Processes that it had started.
    """
    layout = probe_layout()
    parents = layout.directories() if layout is not None else []
    homes = (world.place / "data" / "sandboxes").glob("*")
    markers = [hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12] for home in homes]
    marked = processes_with({f"{MARK}={world.place}".encode()})
    found = {
        "processes": [described(each) for each in {*started, *marked} if lives(each)],
        "control groups": [str(at) for parent in parents for each in markers for at in parent.glob(f"*-{each}-*")],
        "mounts": [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(world.place) in line],
        "files": sorted(each for each in files_below(world.place) if not _KEPT.fullmatch(each)),
        "shared memory": sorted(shared_memory()),
    }
    return {kind: each for kind, each in found.items() if each}


def lives(process: psutil.Process) -> bool:
    """Whether it runs; one that nobody has waited for yet does not."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def described(process: psutil.Process) -> str:
    """Its command line."""
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return "ended meanwhile"


def files_below(place: Path) -> set[str]:
    """Files and directories, relative to a place."""
    return {str(path.relative_to(place)) for path in place.rglob("*")}


def shared_memory() -> set[str]:
    """Callsheet's names in shared memory."""
    return {path.name for path in Path("/dev/shm").glob("callsheet*")}


# The roles
