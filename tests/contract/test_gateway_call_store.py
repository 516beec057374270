"""What a gateway keeps of calls, in either database."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from callsheet.gateway.server.call_store import CallRow, CallState, CallStore, RecordsGoneError
from callsheet.gateway.server.schema import facts
from sqlalchemy import text, update

from tests.support.journals import JournalPlace

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(place: JournalPlace) -> Iterator[CallStore]:
    opened = CallStore.open(place.data_dir, place.url)
    yield opened
    opened.close()


def row(number: int, digest: str = "d", ordinal: int = 1, turns: int = 0) -> CallRow:
    return CallRow(number, digest, ordinal, f"gateway-{number}", turns)


async def begin(store: CallStore, trajectory_id: str, kept: CallRow, now: float = 1.0) -> None:
    await store.begin("j", trajectory_id, kept, now, {"suffix": [1, 2]})


async def test_a_call_is_kept_with_its_action_its_reply_and_its_turn(store: CallStore) -> None:
    for kept in (row(0), row(1, "e", turns=1), row(2, "d", 2, turns=1), row(3)):
        await begin(store, "t", kept)
    assert await store.action("j", "t", 1) == {"suffix": [1, 2]}
    # Turns are committed in another order than calls begin.
    record = {"turn": 1, "text": "\x00\ud83d"}
    assert await store.finish("j", "t", 1, turn=1, record=record, reply={"said": "\u0000b"}) == len(
        json.dumps(record, separators=(",", ":"))
    )
    await store.finish("j", "t", 0, turn=0, record={"turn": 0}, reply={"said": "a"})
    await store.fail("j", "t", 2)
    kept_calls = (await store.load("j", "t")).calls
    assert [(each.number, each.digest, each.ordinal, each.turn, state) for each, state in kept_calls] == [
        (0, "d", 1, 0, CallState.DONE),
        (1, "e", 1, 1, CallState.DONE),
        (3, "d", 1, None, CallState.BEGUN),
    ]
    records = (await store.load("j", "t")).records
    assert [each["turn"] for each in records] == [0, 1]
    assert records[1]["text"] == "\x00\ud83d"
    assert await store.reply("j", "t", 1) == {"said": "\u0000b"}
    assert await store.action("j", "t", 1) is None
    assert await store.reply("j", "t", 9) is None
    assert (await store.load("j", "another")).calls == []


async def test_a_reply_is_not_kept_where_its_call_is_not(store: CallStore) -> None:
    await begin(store, "t", row(0))
    await store.note_closed("j", ["t"], 1.0)
    assert await store.forget("j", "t", 1.0)
    with pytest.raises(RecordsGoneError):
        await store.finish("j", "t", 0, turn=0, record={}, reply={})


async def test_closed_trajectories_are_forgotten_and_open_ones_are_not(store: CallStore) -> None:
    for trajectory_id in ("old", "new", "open", ""):
        await begin(store, trajectory_id, row(0), 10.0)
        await store.finish("j", trajectory_id, 0, turn=None, record=None, reply={"said": "abc"})
    held = await store.held_bytes()
    await store.note_closed("j", ["old"], 20.0)
    await store.note_closed("j", ["new"], 40.0)
    assert await store.kept_trajectories() == {"j": {"old": True, "new": True, "open": False, "": False}}
    assert [name for _, name, _ in await store.closed_trajectories(50.0)] == ["old", "new"]
    assert [await store.forget("j", name, 30.0) for name in ("old", "new", "open")] == [True, False, False]
    await store.forget_outside(30.0, 5.0)
    assert {name: len((await store.load("j", name)).calls) for name in ("old", "new", "open", "")} == {
        "old": 0,
        "new": 1,
        "open": 1,
        "": 0,
    }
    assert await store.held_bytes() == held // 2
    assert (await store.load("j", "new")).closed
    await store.note_closed("j", ["new"], None)
    assert not (await store.load("j", "new")).closed


async def test_a_call_of_a_trajectory_that_was_taken_for_closed_keeps_its_records(store: CallStore) -> None:
    await begin(store, "t", row(0))
    await store.note_closed("j", ["t"], 20.0)
    await begin(store, "t", row(1))
    assert not (await store.load("j", "t")).closed
    await store.note_closed("j", ["t"], 30.0)
    await store.finish("j", "t", 1, turn=0, record={"turn": 0}, reply={})
    assert not await store.forget("j", "t", 1000.0)


async def test_tables_of_version_1_are_brought_to_this_one(store: CallStore, place: JournalPlace) -> None:
    await begin(store, "t", row(0))
    await store.finish("j", "t", 0, turn=0, record={"turn": 0}, reply={"said": "a"})
    with store._engine.begin() as connection:
        connection.execute(text("ALTER TABLE gateway_calls DROP COLUMN action"))
        connection.execute(text("ALTER TABLE gateway_trajectories DROP COLUMN bytes"))
        connection.execute(update(facts).where(facts.c.name == "version").values(value="1"))
    for _ in range(2):
        again = CallStore.open(place.data_dir, place.url)
        assert await again.held_bytes() == len('{"turn":0}{"said":"a"}')
        await begin(again, "t", row(1))
        await again.fail("j", "t", 1)
        again.close()


async def test_gateways_of_one_database_have_one_secret(store: CallStore, place: JournalPlace) -> None:
    again = CallStore.open(place.data_dir, place.url)
    assert len(store.secret()) == 32
    assert again.secret() == store.secret()
    with again._engine.begin() as connection:
        connection.execute(update(facts).where(facts.c.name == "version").values(value="99"))
    again.close()
    with pytest.raises(ValueError, match="its tables are of version 99; this gateway needs 2"):
        CallStore.open(place.data_dir, place.url)
