"""An open job lets go of payloads that it has not used for long, and of none that somebody may still need."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from callsheet.scheduler.access.identity import ANYBODY
from callsheet.scheduler.core.state.entities import FinishedAction
from callsheet.scheduler.service.payloads.claims import PayloadClaims
from callsheet.scheduler.service.payloads.idle import MARGIN_S, IdlePayloads
from callsheet.scheduler.service.payloads.rights import PayloadRights
from callsheet.scheduler.store.local_payloads import LocalPayloadStore
from callsheet.scheduler.store.payloads import PayloadsUnusableError
from callsheet.v1 import common_pb2

from tests.support.core_requests import JOB, action_request, key_of
from tests.support.core_world import SETTINGS, CoreWorld

pytestmark = pytest.mark.anyio
HOUR = 3600.0
KEPT_S = SETTINGS.finished_actions_s
INPUT, OUTPUT = b"an input", b"an output"


class World:
    """A core with an open job, a local store, and what lets go of idle payloads, all by one stepped clock."""

    def __init__(self, core: CoreWorld, store: LocalPayloadStore) -> None:
        self.core = core
        self.store = store
        self.manager = core.manager()
        self.claims = PayloadClaims(store, PayloadRights(store, core.state), core.state.jobs.__contains__)
        self.idle = IdlePayloads(store, self.claims, core.state, lambda: core.now)

    @classmethod
    async def open(cls, directory: Path, core: CoreWorld | None = None) -> World:
        """The one of a core, or one with a job that is empty."""
        if core is None:
            core = CoreWorld()
            core.job()
        return cls(core, await LocalPayloadStore.open(directory, clock=lambda: core.now))

    async def put(self, body: bytes) -> common_pb2.PayloadReference:
        """Stores a body."""

        async def chunks() -> AsyncIterator[bytes]:
            yield body

        stored = await self.store.put(chunks())
        return common_pb2.PayloadReference(sha256=stored.sha256, size=stored.size)

    async def submit(self, action_id: str, body: bytes = INPUT) -> str:
        """Submits an action that refers to a body; returns its digest."""
        reference = await self.put(body)
        claim = await self.claims.of_submit(ANYBODY, JOB, [reference])
        self.core.submit(replace(action_request(action_id), payloads=(reference.sha256,)))
        claim.settle(accepted=True)
        return reference.sha256

    async def finish(self, action_id: str, body: bytes = OUTPUT) -> str:
        """Runs an action whose outcome refers to a body; returns its digest."""
        self.core.plan()
        grant = self.manager.start(action_id)
        sha256 = (await self.put(body)).sha256
        await self.claims.of_result(ANYBODY, JOB, sha256)
        self.manager.end(grant)
        return sha256

    async def look(self, *sha256s: str) -> list[bool]:
        """Looks once, and says which of some payloads the job retains then."""
        await self.idle.release()
        assert not self.claims._claimed
        unknown = await self.store.unknown_to("nobody", JOB, sha256s)
        return [each not in unknown for each in sha256s]


async def test_an_input_stays_while_its_action_is_open_and_goes_after_it(tmp_path: Path) -> None:
    world = await World.open(tmp_path)
    sha256 = await world.submit("a")
    world.core.now += 10 * KEPT_S
    assert await world.look(sha256) == [True]
    world.core.cancel("a")
    assert await world.look(sha256) == [False], "nobody needs an input of an action that has its outcome"


async def test_an_outcomes_payload_stays_as_long_as_the_outcome(tmp_path: Path) -> None:
    world = await World.open(tmp_path)
    await world.submit("a")
    sha256 = await world.finish("a")
    world.core.now += KEPT_S + MARGIN_S - 1.0
    assert await world.look(sha256) == [True]
    world.core.wait(2.0)
    assert world.core.state.find_action(key_of("a")) is None, "the outcome is forgotten"
    assert await world.look(sha256) == [False]


async def test_another_use_keeps_a_payload(tmp_path: Path) -> None:
    world = await World.open(tmp_path)
    output = ""
    for number in range(4):
        await world.submit(f"a{number}", f"input {number}".encode())
        output = await world.finish(f"a{number}")
        world.core.now += 20 * HOUR
        world.manager.heartbeat()
        assert await world.look(output) == [True]
    world.core.now += 20 * HOUR
    assert await world.look(output) == [False]


async def test_a_payload_whose_claim_is_pending_stays(tmp_path: Path) -> None:
    world = await World.open(tmp_path)
    reference = await world.put(INPUT)
    (await world.claims.of_submit(ANYBODY, JOB, [reference])).settle(accepted=True)
    pending = await world.claims.of_submit(ANYBODY, JOB, [reference])
    # So long no submit is undecided; the clock alone would let it go.
    world.core.now += 2 * KEPT_S
    await world.idle.release()
    assert await world.store.unknown_to("nobody", JOB, [reference.sha256]) == []
    pending.settle(accepted=True)
    assert await world.look(reference.sha256) == [False]


@pytest.mark.parametrize("accepted", [True, False, None], ids=["accepted", "refused", "pending"])
async def test_what_is_used_while_payloads_are_let_go_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, accepted: bool | None
) -> None:
    world = await World.open(tmp_path)
    reference = await world.put(INPUT)
    await world.claims.of_result(ANYBODY, JOB, reference.sha256)
    world.core.now += 2 * KEPT_S
    look = world.store.idle

    async def look_before_a_submit(job_id: str, idle_s: float) -> list[str]:
        found = await look(job_id, idle_s)
        claim = await world.claims.of_submit(ANYBODY, JOB, [reference])
        if accepted is not None:
            claim.settle(accepted=accepted)
        return found

    monkeypatch.setattr(world.store, "idle", look_before_a_submit)
    await world.idle.release()
    assert await world.store.unknown_to("nobody", JOB, [reference.sha256]) == []


async def test_a_submit_that_takes_what_is_just_let_go_takes_it_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await World.open(tmp_path)
    reference = await world.put(INPUT)
    await world.claims.of_result(ANYBODY, JOB, reference.sha256)
    world.core.now += 2 * KEPT_S
    let_go = world.store.release

    async def let_go_while_claimed(job_id: str, sha256s: list[str], idle_s: float) -> int:
        tasks.start_soon(claim)
        await anyio.wait_all_tasks_blocked()
        return await let_go(job_id, sha256s, idle_s)

    async def claim() -> None:
        (await world.claims.of_submit(ANYBODY, JOB, [reference])).settle(accepted=True)

    monkeypatch.setattr(world.store, "release", let_go_while_claimed)
    async with anyio.create_task_group() as tasks:
        await world.idle.release()
    assert await world.store.unknown_to("nobody", JOB, [reference.sha256]) == []
    assert not world.claims._claimed


async def test_the_time_without_a_scheduler_does_not_count(tmp_path: Path) -> None:
    world = await World.open(tmp_path)
    await world.submit("a")
    sha256 = await world.finish("a")
    core = world.core
    for _ in range(3):
        # Each scheduler runs for eight hours, and then there is none for two days.
        core.now += 8 * HOUR
        core.handle()
        core.now += 48 * HOUR
        core = core.restart()
        world = await World.open(tmp_path, core)
        assert await world.look(sha256) == [True]
        assert isinstance(core.state.find_action(key_of("a")), FinishedAction)
    core.now += MARGIN_S + 1.0
    assert await world.look(sha256) == [False]


async def test_the_time_away_is_no_matter_to_one_that_ran_long_enough(tmp_path: Path) -> None:
    former = await World.open(tmp_path)
    await former.submit("a", b"another")
    former.core.now += 1000 * HOUR
    world = await World.open(tmp_path, former.core.restart())
    assert world.core.state.away_s == 1000 * HOUR
    sha256 = (await world.put(INPUT)).sha256
    await world.claims.of_result(ANYBODY, JOB, sha256)
    world.core.now += KEPT_S + MARGIN_S + 1.0
    assert await world.look(sha256) == [False]


async def test_a_store_that_fails_is_asked_again_at_the_next_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await World.open(tmp_path)
    sha256 = (await world.put(INPUT)).sha256
    await world.claims.of_result(ANYBODY, JOB, sha256)
    world.core.now += 2 * KEPT_S

    async def fail(*_: object) -> int:
        raise PayloadsUnusableError(OSError("broken"))

    with monkeypatch.context() as broken:
        broken.setattr(world.store, "release", fail)
        assert await world.look(sha256) == [True]
    assert await world.look(sha256) == [False]
