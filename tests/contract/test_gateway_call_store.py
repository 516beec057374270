"""What a gateway keeps of calls, in either database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from callsheet.gateway.server.call_store import CallRow, CallState, CallStore
from callsheet.gateway.server.schema import facts
from sqlalchemy import update

from tests.support.journals import JournalPlace

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(place: JournalPlace) -> Iterator[CallStore]:
    opened = CallStore.open(place.data_dir, place.url)
    yield opened
    opened.close()


def row(number: int, digest: str = "d", ordinal: int = 1, turns: int = 0) -> CallRow:
    return CallRow(number, digest, ordinal, f"gateway-{number}", turns, CallState.BEGUN)


async def test_a_call_is_kept_with_its_reply_and_its_turn(store: CallStore) -> None:
    await store.begin("j", "t", row(0), 1.0)
    await store.begin("j", "t", row(1, "e", turns=1), 2.0)
    await store.begin("j", "t", row(2, "d", 2, turns=1), 3.0)
    # Turns are committed in another order than calls begin.
    await store.finish("j", "t", 1, turn=1, record={"turn": 1, "text": "\x00\ud83d"}, reply={"said": "\u0000b"})
    await store.finish("j", "t", 0, turn=0, record={"turn": 0}, reply={"said": "a"})
    await store.fail("j", "t", 2)
    kept = await store.load("j", "t")
    assert [(each.number, each.digest, each.ordinal, each.turns_before, each.state) for each in kept.calls] == [
        (0, "d", 1, 0, CallState.DONE),
        (1, "e", 1, 1, CallState.DONE),
        (2, "d", 2, 1, CallState.FAILED),
    ]
    assert [record["turn"] for record in kept.records] == [0, 1]
    assert kept.records[1]["text"] == "\x00\ud83d"
    assert await store.reply("j", "t", 1) == {"said": "\u0000b"}
    assert (await store.load("j", "another")).calls == []


async def test_closed_trajectories_are_forgotten_and_open_ones_are_not(store: CallStore) -> None:
    for trajectory_id in ("old", "new", "open", ""):
        await store.begin("j", trajectory_id, row(0), 10.0)
    assert sorted((await store.open_trajectories())["j"]) == ["", "new", "old", "open"]
    await store.note_closed("j", ["old"], 20.0)
    await store.note_closed("j", ["new"], 40.0)
    assert await store.forget_closed(30.0) == [("j", "old")]
    assert {name: len((await store.load("j", name)).calls) for name in ("old", "new", "open", "")} == {
        "old": 0,
        "new": 1,
        "open": 1,
        # Calls outside of trajectories go by their own age.
        "": 0,
    }
    assert (await store.load("j", "new")).closed


async def test_gateways_of_one_database_have_one_secret(store: CallStore, place: JournalPlace) -> None:
    again = CallStore.open(place.data_dir, place.url)
    assert len(store.secret()) == 32
    assert again.secret() == store.secret()
    with again._engine.begin() as connection:
        connection.execute(update(facts).where(facts.c.name == "version").values(value="99"))
    again.close()
    with pytest.raises(ValueError, match="its tables are of version 99; this gateway needs 1"):
        CallStore.open(place.data_dir, place.url)
