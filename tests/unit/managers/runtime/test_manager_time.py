"""The meter of granted units, and of what is waited for."""

from __future__ import annotations

import random

import anyio
import pytest
from callsheet.managers.clock import GrantMeter, SharedTime, Waits, after_waiting, note_waits, waiting
from callsheet.timing.waits import Cause


def test_the_meter_follows_resizes() -> None:
    meter = GrantMeter({"cpu": 2, "memory": 100}, 0.0)
    assert meter.unit_seconds(0.0) == {"cpu": 0.0, "memory": 0.0}
    meter.change({"cpu": 4, "memory": 100}, 3.0)
    meter.change({"cpu": 1}, 5.0)
    assert meter.unit_seconds(10.0) == {"cpu": 2 * 3 + 4 * 2 + 1 * 5, "memory": 500.0}


def test_shares_of_an_engines_time_add_up_to_the_time_in_which_it_was_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, now, busy_s = random.Random(7), [100.0], 0.0
    monkeypatch.setattr("callsheet.managers.clock.monotonic", lambda: now[0])
    engine, shares, open_parts = SharedTime(), [], {}
    for number in range(300):
        if draw.random() < 0.5:
            part = engine.part()
            open_parts[number] = part, part.__enter__()
        elif open_parts:
            part, share_s = open_parts.pop(draw.choice(list(open_parts)))
            shares.append(share_s())
            part.__exit__(None, None, None)
        took_s = draw.expovariate(1.0)
        busy_s += took_s if open_parts else 0.0
        now[0] += took_s
    shares += [share_s() for _, share_s in open_parts.values()]
    assert len(shares) > 100
    assert sum(shares) == pytest.approx(busy_s)


def test_two_at_once_have_half_of_an_engines_time_each(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("callsheet.managers.clock.monotonic", lambda: now[0])
    engine = SharedTime()
    with engine.part() as first:
        now[0] = 2.0
        with engine.part() as second:
            now[0] = 6.0
            assert second() == 2.0
        now[0] = 7.0
        assert first() == 2.0 + 2.0 + 1.0
    now[0] = 50.0
    with engine.part() as third:
        now[0] = 51.0
        assert third() == 1.0


def test_waits_add_up_by_cause_and_a_moment_is_none() -> None:
    waits = Waits()
    waits.add(Cause.IMAGE, 2.0)
    waits.add(Cause.IMAGE, 1.0)
    waits.add(Cause.MEMORY, 0.0001)
    with waits.on(Cause.SANDBOX):
        pass
    assert waits.seconds == {Cause.IMAGE: 3.0}


def test_a_wait_of_nobody_is_noted_nowhere() -> None:
    with waiting(Cause.MEMORY):
        pass


@pytest.mark.anyio
async def test_only_a_lock_that_another_holds_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waits, seconds = Waits(), iter(range(100))
    monkeypatch.setattr("callsheet.managers.clock.monotonic", lambda: float(next(seconds)))
    lock = anyio.Lock(fast_acquire=True)
    note_waits(waits)
    async with after_waiting(Cause.SANDBOX, lock):
        assert waits.seconds == {}
        async with anyio.create_task_group() as tasks:

            async def want() -> None:
                async with after_waiting(Cause.SANDBOX, lock):
                    pytest.fail("another holds the lock")

            tasks.start_soon(want)
            await anyio.wait_all_tasks_blocked()
            lock_held = waits.until(50.0)
            tasks.cancel_scope.cancel()
    assert set(lock_held) == {Cause.SANDBOX}
