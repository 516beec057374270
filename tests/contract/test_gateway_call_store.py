"""What a gateway keeps of calls, in either database."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

import anyio
import pytest
from callsheet.gateway.server.call_store import CallRow, CallStore, JobLife, KeptTrajectory, RecordsGoneError
from callsheet.gateway.server.database import SQLITE_FILE
from sqlalchemy import create_engine, event, inspect, make_url, text
from sqlalchemy.exc import DBAPIError

from tests.support.journals import JournalPlace

pytestmark = pytest.mark.anyio
_JOB = JobLife("j", "1")


@pytest.fixture
def store(place: JournalPlace) -> Iterator[CallStore]:
    opened = CallStore.open(place.data_dir, place.url)
    yield opened
    opened.close()


def row(number: int, digest: str = "d") -> CallRow:
    return CallRow(number, digest, f"gateway-{number}")


async def begin(store: CallStore, trajectory_id: str, kept: CallRow, now: float = 1.0) -> None:
    await store.begin(_JOB, trajectory_id, kept, now, {"suffix": [1, 2]})


async def closed(store: CallStore) -> dict[str, float | None]:
    """When trajectories were seen closed."""
    return {each.trajectory_id: each.closed_at for each in await store.kept()}


async def test_a_call_is_kept_with_its_action_and_then_its_turn(store: CallStore) -> None:
    for kept in (row(0), row(1, "e"), row(2), row(3)):
        await begin(store, "t", kept)
    assert await store.action(_JOB, "t", 1) == {"suffix": [1, 2]}
    # Turns are committed in another order than calls begin.
    record = {"turn": 1, "text": "\x00\ud83d"}
    size = await store.finish(_JOB, "t", 0, turn=1, record=record)
    assert size == len(json.dumps(record, separators=(",", ":")))
    await store.finish(_JOB, "t", 1, turn=0, record={"turn": 0})
    await store.fail(_JOB, "t", 2)
    found = await store.load(_JOB, "t")
    assert found.calls == [replace(row(0), turn=1), replace(row(1, "e"), turn=0), row(3)]
    assert found.records == [{"turn": 0}, record]
    assert found.record_bytes == size + len('{"turn":0}')
    assert [await store.action(_JOB, "t", number) for number in (1, 3, 9)] == [None, {"suffix": [1, 2]}, None]
    assert (await store.load(_JOB, "another")).calls == []


async def test_a_turn_is_not_kept_where_its_call_is_not(store: CallStore) -> None:
    await begin(store, "t", row(0))
    await store.note_closed(_JOB, ["t"], 1.0)
    assert await store.forget(_JOB, "t", 1.0)
    with pytest.raises(RecordsGoneError):
        await store.finish(_JOB, "t", 0, turn=0, record={})


async def test_calls_that_begin_at_once_share_commits_and_no_failure(store: CallStore) -> None:
    await begin(store, "t", row(0))
    commits: list[object] = []
    event.listen(store._engine, "commit", commits.append)
    refused: dict[int, str] = {}

    async def once(number: int) -> None:
        try:
            await begin(store, "t", row(number % 20))
        except DBAPIError as error:
            refused[number] = str(error)

    async with anyio.create_task_group() as tasks:
        # The first alone, and all that come while it waits for the disk together.
        for number in range(1, 20):
            tasks.start_soon(once, number)
    assert len(commits) == 2
    assert [kept.number for kept in (await store.load(_JOB, "t")).calls] == list(range(20))
    async with anyio.create_task_group() as tasks:
        # One that is there already fails by itself.
        for number in (20, 41, 22, 43):
            tasks.start_soon(once, number)
        tasks.start_soon(begin, store, "u", row(0))
    assert sorted(refused) == [20, 22, 41, 43]
    assert "[1,2]" not in "".join(refused.values()), "what is kept of calls is in no error"
    assert (await store.load(_JOB, "u")).calls == [row(0)]


async def test_closed_trajectories_are_forgotten_and_open_ones_are_not(store: CallStore) -> None:
    for trajectory_id in ("old", "new", "open", ""):
        await begin(store, trajectory_id, row(0), 10.0)
    await store.finish(_JOB, "old", 0, turn=0, record={"turn": 0})
    await store.note_closed(_JOB, ["old", "new"], 20.0)
    await store.note_closed(_JOB, ["new"], 40.0)
    begun, done = len('{"suffix":[1,2]}'), len('{"turn":0}')
    kept = await store.kept()
    assert kept[:2] == [
        KeptTrajectory(_JOB, "old", done, 20.0),
        KeptTrajectory(_JOB, "new", begun, 40.0),
    ]
    assert {each.trajectory_id: each.size for each in kept[2:]} == {"open": begun, "": begun}
    assert [await store.forget(_JOB, name, 30.0) for name in ("old", "new", "open")] == [True, False, False]
    await store.forget_outside(10.0)
    assert await closed(store) == {"new": 40.0, "open": None, "": None}
    await store.forget_outside(11.0)
    await store.note_closed(_JOB, ["new"], None)
    assert await closed(store) == {"new": None, "open": None}


async def test_a_call_of_a_trajectory_that_was_taken_for_closed_keeps_its_records(store: CallStore) -> None:
    await begin(store, "t", row(0))
    await store.note_closed(_JOB, ["t"], 20.0)
    await begin(store, "t", row(1))
    assert await closed(store) == {"t": None}
    await store.note_closed(_JOB, ["t"], 30.0)
    await store.finish(_JOB, "t", 1, turn=0, record={"turn": 0})
    assert not await store.forget(_JOB, "t", 1000.0)


async def test_gateways_of_one_database_have_one_secret(store: CallStore, place: JournalPlace) -> None:
    again = CallStore.open(place.data_dir, place.url)
    assert len(store.secret()) == 32
    assert again.secret() == store.secret()
    again.close()


@pytest.mark.parametrize("version", ["2", "99"])
async def test_records_of_another_version_are_refused_and_stay(place: JournalPlace, version: str) -> None:
    place.data_dir.mkdir()
    url = f"sqlite:///{place.data_dir}/{SQLITE_FILE}" if place.url is None else place.url
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg" if place.url else "sqlite"))
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE gateway_facts (name VARCHAR(64) PRIMARY KEY, value TEXT NOT NULL)"))
        connection.execute(text(f"INSERT INTO gateway_facts VALUES ('version', '{version}')"))
    has = f"has call records of version '{version}'; it must be empty or have version '4'"
    with pytest.raises(ValueError, match=has):
        CallStore.open(place.data_dir, place.url)
    assert inspect(engine).get_table_names() == ["gateway_facts"]
    engine.dispose()


async def test_a_job_that_is_opened_anew_has_no_part_in_what_was_kept_of_the_former_one(store: CallStore) -> None:
    later = JobLife("j", "2")
    await begin(store, "t", CallRow(0, "d", "a-0"))
    await store.note_closed(_JOB, ["t"], 1.0)
    assert (await store.load(later, "t")).calls == []
    assert await store.newest(later, "t", "d") is None
    await store.begin(later, "t", CallRow(0, "d", "a-1"), 2.0, {})
    await store.finish(later, "t", 0, turn=0, record={"turn": 0})
    assert [row.action_id for row in (await store.load(_JOB, "t")).calls] == ["a-0"]
    assert (await store.load(_JOB, "t")).records == []
    assert [(each.job, each.closed_at) for each in await store.kept()] == [(_JOB, 1.0), (later, None)]
    assert await store.newest_life("j") == "2"
    assert not await store.newest_life("another")
    assert await store.forget(_JOB, "t", 3.0)
    assert (await store.load(later, "t")).records == [{"turn": 0}]
