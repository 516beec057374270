"""The service with PostgreSQL for its journal and Redis for payloads, killed in between."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from callsheet.client import Client, Command, EnvStep, SandboxFile, Succeeded, ToolCall, Unservable
from callsheet.client.admin import AdminClient
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.scheduler.store.engine import SQLITE_FILE
from redis import Redis

from tests.support.expected import expect
from tests.support.servers import PostgresServer, postgres_server, redis_server
from tests.support.stack_processes import kill_and_wait, start

pytestmark = pytest.mark.anyio

_CONTENT = random.Random(1).randbytes(200_000)


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    with redis_server() as url:
        yield url


async def test_postgresql_and_redis_keep_what_was_acknowledged(
    tmp_path: Path, postgres: PostgresServer, redis_url: str
) -> None:
    database = postgres.new_database()
    settings = StackSettings(
        tmp_path,
        managers=(Role.NOOP,),
        arguments={Role.SCHEDULER: ("--database-url", database, "--redis-url", redis_url)},
    )
    async with local_stack(settings) as stack, Client(stack.address) as client, AdminClient(stack.address) as admin:
        job = await client.open_job("job")
        trajectory = job.trajectory("t")
        await trajectory.open()
        assert isinstance(await trajectory.env_reset(service="noop", files=[SandboxFile("f", _CONTENT)]), Succeeded)
        step = EnvStep(Command.argv("true", "x"), files=[SandboxFile("g", _CONTENT[::-1])])
        outcome = await (await trajectory.submit(step, action_id="done")).outcome()
        running = await trajectory.submit(step, action_id="running", expected_duration_s=1.0)
        waiting = await job.submit(ToolCall("elsewhere", "get"), action_id="waiting", unservable=Unservable.WAIT)
        for handle in (running, waiting):
            await handle.accepted()

        await kill_and_wait(stack, Role.SCHEDULER)
        await start(stack, Role.SCHEDULER)

        assert await admin.outcome("job", "done") == outcome
        assert await admin.outcome("job", "waiting") is None
        assert expect(Succeeded, await running.outcome()).attempts == 1
        # Its payloads are still there: the same body attaches, without another upload.
        assert await (await trajectory.submit(step, action_id="done")).outcome() == outcome
        assert (await admin.status()).epoch == 2

        with Redis.from_url(redis_url) as redis:
            stored = [key for key in redis.scan_iter("*") if redis.memory_usage(key) > len(_CONTENT)]
            assert len(stored) == 2
        await job.close()
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT count(*) FROM jobs").fetchone()
    assert row == (0,)
    assert not (tmp_path / SQLITE_FILE).exists()
