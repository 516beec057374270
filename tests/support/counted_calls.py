"""Calls of a tool through a scheduler and a tools manager, both real processes, to a server that counts its requests.

Faults strike the two in many forms while calls run. Whatever strikes, the server is asked at most once for each call.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import psycopg
from aiohttp import web
from anyio.abc import TaskGroup
from callsheet.client import (
    Client,
    ClientOptions,
    Failed,
    FailureKind,
    Job,
    Outcome,
    Succeeded,
    Timeouts,
    ToolCallResult,
    Unservable,
)

from tests.support.clusters import Cluster, Part, open_cluster
from tests.support.ports import free_port
from tests.support.waiting import until

LEASE_S = 2.0
LONGEST_FORM_S = 180.0
_CALLERS = 8
_LONGEST_CALL_S = 1.2
_BROKEN = 0.1
_PATIENT = ClientOptions(connect_timeout_s=60.0, give_up_after_s=300.0, backoff_initial_s=0.05, backoff_max_s=0.25)
_LONG = Timeouts(schedule_to_start_s=600.0, start_to_close_s=60.0, schedule_to_close_s=900.0)


class CountingServer:
    """Counts how often each path was asked for; answers after a while, or breaks the connection in place of an answer.

    Attributes:
        asked: Requests that have begun, by path.
    """

    def __init__(self, chance: random.Random) -> None:
        self.asked = Counter[str]()
        self._chance = chance

    async def _answer(self, request: web.Request) -> web.Response:
        self.asked[request.path] += 1
        await anyio.sleep(self._chance.uniform(0.05, _LONGEST_CALL_S))
        if self._chance.random() < _BROKEN and request.transport is not None:
            request.transport.close()
        return web.Response(text="{}")

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serves for the length of the block; the URL."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        port = free_port()
        await web.TCPSite(runner, "127.0.0.1", port).start()
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            await runner.cleanup()


class CountedCalls:
    """A load of calls, and what became of them.

    Attributes:
        scheduler: The scheduler.
        manager: The tools manager.
        others: A scheduler and a tools manager that take the places of these on PostgreSQL; not started.
        others_address: The address of that scheduler.
        chance: Of the faults.
        server: It counts.
        database_url: Of the journal; empty for SQLite.
        job: The job of the calls; it outlives its client.
        callers: The tasks that call.
        outcomes: By the paths of the calls.
    """

    job: Job
    callers: TaskGroup

    def __init__(
        self, cluster: Cluster, url: str, server: CountingServer, chance: random.Random, database_url: str
    ) -> None:
        self._cluster, self.server, self.chance, self.database_url = cluster, server, chance, database_url
        self.outcomes: dict[str, Outcome[ToolCallResult]] = {}
        self._tools = cluster.directory / "tools.toml"
        self._tools.write_text(
            f'[tools.search]\nurl = "{url}"\nmethods = ["GET", "POST"]\nconcurrency = {_CALLERS // 2}\n'
        )
        self._over = anyio.Event()
        self.scheduler, self.manager = cluster.scheduler, self._add_manager("tools", cluster.address)
        # On another machine.
        self.others_address = f"127.0.0.1:{free_port()}"
        place = ("--listen", self.others_address, "--data-dir", str(cluster.directory / "another"))
        times = ("--manager-lease", f"{LEASE_S:g}", "--heartbeat-interval", f"{LEASE_S / 10:g}")
        words = ("scheduler", *place, *times, "--database-url", database_url)
        self.others = (
            cluster.add("another", "callsheet.cli.main", *words),
            self._add_manager("tools-2", self.others_address),
        )

    def _add_manager(self, name: str, scheduler: str) -> Part:
        """Adds a tools manager, which is not started yet."""
        where = ("--scheduler", scheduler, "--manager-id", name, "--node-id", name, "--cpus", "1")
        words = ("--memory-mib", "500", "--drain-timeout", "0.2", "--tools-file", str(self._tools))
        return self._cluster.add(name, "callsheet.cli.main", "manager", "tools", *where, *words)

    async def keep_calling(self, caller: int) -> None:
        """Makes one call after another until `finish`."""
        number = 0
        while not self._over.is_set():
            await self.call(self.job, f"/{caller}/{number}", "GET" if number % 2 else "POST")
            number += 1

    async def call(self, job: Job, path: str, method: str = "POST") -> None:
        """Makes a call, and keeps its outcome."""
        self.outcomes[path] = await job.tool_call(
            "search", f"{method} {path}", action_id=path, unservable=Unservable.WAIT, timeouts=_LONG
        )

    def finish(self) -> None:
        """Has every caller end after its call."""
        self._over.set()

    async def some_run(self) -> None:
        """Waits until calls are in flight that began after this."""
        before = self.server.asked.total()
        await until(lambda: self.server.asked.total() >= before + _CALLERS // 2)

    def account(self) -> Counter[str]:
        """Checks that no call was made twice, and that each says what became of it."""
        twice = {path: count for path, count in self.server.asked.items() if count > 1}
        assert not twice, f"made more than once: {twice}; their outcomes: {[self.outcomes.get(path) for path in twice]}"
        found = Counter[str]()
        for path, outcome in self.outcomes.items():
            if isinstance(outcome, Succeeded):
                assert self.server.asked[path] == 1, f"{path} succeeded and was never made"
                found["succeeded"] += 1
            else:
                assert isinstance(outcome, Failed), outcome
                assert outcome.kind is FailureKind.INFRA, outcome
                found[outcome.reason] += 1
        return found

    # -- faults -------------------------------------------------------------------------------------------------------

    async def strike(self, form: str) -> None:
        """Has a fault of a form strike while calls run, and returns once calls run again."""
        with anyio.fail_after(LONGEST_FORM_S):
            await self.some_run()
            await FORMS[form](self)
            await self.some_run()

    async def restart(self, *parts: Part) -> None:
        """Waits for the ends of parts, and starts them at once, in this order."""
        for part in parts:
            await part.stop()
        async with anyio.create_task_group() as starts:
            for part in parts:
                starts.start_soon(part.start)

    def end_connections(self) -> None:
        """Ends all connections to the database but its own."""
        with psycopg.connect(self.database_url, autocommit=True) as database:
            database.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND application_name LIKE 'callsheet%'"
            )

    async def a_while(self, longest_s: float = 1.5) -> None:
        """Waits for a time that chance has."""
        await anyio.sleep(self.chance.uniform(0.0, longest_s))

    async def stopped(self, *parts: Part) -> None:
        """Stops processes without a word for longer than a lease, and has them go on."""
        for part in parts:
            part.signal(signal.SIGSTOP)
        await anyio.sleep(LEASE_S * self.chance.uniform(1.1, 2.0))
        for part in parts:
            part.signal(signal.SIGCONT)


async def _killed_at_once(calls: CountedCalls) -> None:
    for part in (calls.scheduler, calls.manager):
        part.signal(signal.SIGKILL)
    await calls.restart(calls.scheduler, calls.manager)


async def _killed_manager_back_first(calls: CountedCalls) -> None:
    for part in (calls.scheduler, calls.manager):
        part.signal(signal.SIGKILL)
    await calls.restart(calls.manager, calls.scheduler)


async def _manager_killed_then_scheduler(calls: CountedCalls) -> None:
    await calls.manager.kill()
    await calls.a_while()
    await calls.scheduler.kill()
    await calls.restart(calls.scheduler, calls.manager)


async def _scheduler_killed_then_manager(calls: CountedCalls) -> None:
    await calls.scheduler.kill()
    await calls.a_while()
    await calls.manager.kill()
    await calls.restart(calls.manager, calls.scheduler)


async def _scheduler_killed(calls: CountedCalls) -> None:
    await calls.scheduler.kill()
    await calls.restart(calls.scheduler)


async def _manager_killed(calls: CountedCalls) -> None:
    await calls.manager.kill()
    await calls.restart(calls.manager)


async def _terminated_at_once(calls: CountedCalls) -> None:
    for part in (calls.scheduler, calls.manager):
        part.signal(signal.SIGTERM)
    await calls.restart(calls.scheduler, calls.manager)


async def _manager_terminated_then_scheduler_killed(calls: CountedCalls) -> None:
    calls.manager.signal(signal.SIGTERM)
    await calls.a_while(0.5)
    await calls.scheduler.kill()
    await calls.restart(calls.scheduler, calls.manager)


async def _scheduler_terminated_then_manager_killed(calls: CountedCalls) -> None:
    calls.scheduler.signal(signal.SIGTERM)
    await calls.a_while(0.5)
    await calls.manager.kill()
    await calls.restart(calls.manager, calls.scheduler)


async def _scheduler_stopped(calls: CountedCalls) -> None:
    await calls.stopped(calls.scheduler)


async def _manager_stopped(calls: CountedCalls) -> None:
    await calls.stopped(calls.manager)


async def _both_stopped(calls: CountedCalls) -> None:
    await calls.stopped(calls.scheduler, calls.manager)


async def _scheduler_stopped_while_manager_is_killed(calls: CountedCalls) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(calls.stopped, calls.scheduler)
        await calls.a_while()
        await calls.manager.kill()
        tasks.start_soon(calls.restart, calls.manager)


async def _database_hangs_and_breaks(calls: CountedCalls) -> None:
    with psycopg.connect(calls.database_url) as database:
        # From here on no commit ends.
        database.execute("LOCK TABLE actions")
        await calls.a_while()
        await calls.manager.kill()
        calls.end_connections()
    assert await calls.scheduler.wait() != 0, "it goes on with a commit that failed"
    await calls.restart(calls.scheduler, calls.manager)


async def _another_scheduler_leads(calls: CountedCalls) -> None:
    """A scheduler hangs, with or without its manager; others take its place, and it goes on with what it reads."""
    hang = (calls.scheduler, calls.manager)[: calls.chance.randint(1, 2)]
    for part in hang:
        part.signal(signal.SIGSTOP)
    # Clients call both: the one that hangs will read it, too.
    late = [f"/late/{calls.scheduler.starts}/{number}" for number in range(_CALLERS)]
    for path in late:
        calls.callers.start_soon(calls.call, calls.job, path)
    calls.end_connections()
    await calls.restart(*calls.others)
    async with Client(calls.others_address, _PATIENT) as client, anyio.create_task_group() as tasks:
        for path in late:
            tasks.start_soon(calls.call, client.job("calls"), path)
    for part in hang:
        part.signal(signal.SIGCONT)
    assert await calls.scheduler.wait() != 0, "it goes on beside the one that leads"
    await calls.a_while()
    for part in (*calls.others, calls.manager):
        await part.kill()
    await calls.restart(calls.scheduler, calls.manager)


FORMS: dict[str, Callable[[CountedCalls], Awaitable[None]]] = {
    form.__name__.strip("_").replace("_", " "): form
    for form in (
        _killed_at_once,
        _killed_manager_back_first,
        _manager_killed_then_scheduler,
        _scheduler_killed_then_manager,
        _scheduler_killed,
        _manager_killed,
        _terminated_at_once,
        _manager_terminated_then_scheduler_killed,
        _scheduler_terminated_then_manager_killed,
        _scheduler_stopped,
        _manager_stopped,
        _both_stopped,
        _scheduler_stopped_while_manager_is_killed,
        _database_hangs_and_breaks,
        _another_scheduler_leads,
    )
}
OF_POSTGRESQL = ("database hangs and breaks", "another scheduler leads")


async def count_calls(
    directory: Path, chance: random.Random, forms: Sequence[str], database_url: str = ""
) -> Counter[str]:
    """Has faults of these forms strike, one after another, while calls run.

    Args:
        directory: For data and logs.
        chance: Of the moments.
        forms: Keys of `FORMS`.
        database_url: Of PostgreSQL; empty for SQLite.

    Returns:
        How many calls succeeded, and the reasons of the others.

    Raises:
        AssertionError: A call was made twice, or failed as if it were its own fault.
    """
    options = ("--database-url", database_url) if database_url else ()
    server = CountingServer(chance)
    async with (
        server.served() as url,
        open_cluster(directory, managers=0, lease_s=LEASE_S, options=options) as cluster,
        Client(cluster.address, _PATIENT) as client,
    ):
        calls = CountedCalls(cluster, url, server, chance, database_url)
        await calls.manager.start()
        calls.job = await client.open_job("calls", detached=True)
        async with anyio.create_task_group() as calls.callers:
            for caller in range(_CALLERS):
                calls.callers.start_soon(calls.keep_calling, caller)
            for form in forms:
                await calls.strike(form)
                calls.account()
            calls.finish()
        return calls.account()
