"""Calls and items of one peer are bounded; who a peer is."""

from __future__ import annotations

import anyio
import pytest
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.service.limits import peer_limits
from callsheet.scheduler.service.limits.peer_limits import BURST_S, MAX_TRANSFERS, PeerLimits
from callsheet.scheduler.service.limits.refusal_log import address_of
from callsheet.scheduler.service.limits.settings import LimitSettings

RATE = 10


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        """Now."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """A clock at zero."""
    return Clock()


@pytest.fixture
def limits(clock: Clock) -> PeerLimits:
    """Limits of ten calls each second, five at once, and a thousand items each second."""
    settings = LimitSettings(max_peer_calls=5, max_peer_requests_s=RATE, max_peer_items_s=1000)
    return PeerLimits(settings, clock)


def call_once(limits: PeerLimits, peer: str = "a") -> None:
    """A call that is over at once."""
    with limits.call(peer):
        pass


def test_a_peer_that_makes_too_many_calls_is_told_when_to_try_again(limits: PeerLimits, clock: Clock) -> None:
    for _ in range(RATE * BURST_S):
        call_once(limits)
    with pytest.raises(RefusedError) as refused:
        call_once(limits)
    assert (refused.value.code, refused.value.field) == (RefusalCode.RESOURCE_EXHAUSTED, "requests")
    assert refused.value.retry_after == pytest.approx(1 / RATE)
    call_once(limits, "somebody else")
    clock.now += refused.value.retry_after or 0.0
    call_once(limits)


def test_a_refused_call_costs_nothing(limits: PeerLimits, clock: Clock) -> None:
    for _ in range(RATE * BURST_S):
        call_once(limits)
    for _ in range(100):
        with pytest.raises(RefusedError):
            call_once(limits)
    clock.now += 1.0
    for _ in range(RATE):
        call_once(limits)


def test_calls_under_way_are_bounded_and_end_with_their_errors(limits: PeerLimits) -> None:
    def hold(depth: int) -> None:
        with limits.call("a"):
            if depth == 1:
                with pytest.raises(RefusedError, match="5 calls under way") as refused:
                    call_once(limits)
                assert refused.value.retry_after
                call_once(limits, "b")
                raise LookupError
            hold(depth - 1)

    for _ in range(3):
        with pytest.raises(LookupError):
            hold(5)


async def test_items_beyond_the_rate_wait_and_are_not_refused(
    limits: PeerLimits, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)
        clock.now += seconds

    monkeypatch.setattr(anyio, "sleep", sleep)
    await limits.pace("a", 1000 * BURST_S)
    await limits.pace("b", 10)
    assert waits == []
    for _ in range(3):
        await limits.pace("a", 500)
    assert waits == pytest.approx([0.5, 0.5, 0.5])


def test_only_so_many_peers_are_remembered(limits: PeerLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_limits, "MAX_PEERS", 3)
    with limits.call("busy"):
        for number in range(20):
            call_once(limits, f"p{number}")
        assert len(limits._peers) == 3
        assert limits._peers["busy"].calls == 1


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:53412", "ipv4:127.0.0.1"),
        ("ipv6:%5B::1%5D:53412", "ipv6:%5B::1%5D"),
        ("unix:", "unix:"),
    ],
)
def test_an_address_is_a_peer_whatever_its_port(peer: str, address: str) -> None:
    assert address_of(peer) == address


async def test_a_peer_has_only_so_many_transfers_and_others_go_on(limits: PeerLimits) -> None:
    entered: list[str] = []

    async def hold(name: str, until: anyio.Event) -> None:
        async with limits.transfer(name):
            entered.append(name)
            await until.wait()

    first, others = anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(hold, "a", first)
        for _ in range(MAX_TRANSFERS):
            tasks.start_soon(hold, "a", others)
        tasks.start_soon(hold, "b", others)
        await anyio.wait_all_tasks_blocked()
        assert (entered.count("a"), entered.count("b")) == (MAX_TRANSFERS, 1)
        first.set()
        await anyio.wait_all_tasks_blocked()
        assert entered.count("a") == MAX_TRANSFERS + 1
        others.set()
