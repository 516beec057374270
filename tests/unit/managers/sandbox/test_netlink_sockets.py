"""How many netlink sockets the agent allows, without a kernel that asks."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from callsheet.managers.sandbox.agent.netlink import SECONDS_TO_APPEAR, NetlinkSockets, count_sockets
from callsheet.managers.sandbox.isolation import kernel_bounds
from callsheet.managers.sandbox.isolation.kernel_bounds import most_netlink_sockets

OTHER = os.getppid()


def test_no_more_than_the_most_are_there_at_a_time() -> None:
    sockets = NetlinkSockets(2)
    assert sockets.take(0, 1, 0.0)
    assert sockets.take(1, 1, 0.1)
    assert not sockets.take(2, 1, 0.2)
    assert sockets.take(1, 1, 0.3)


def test_what_has_not_appeared_counts_for_a_while() -> None:
    sockets = NetlinkSockets(2)
    assert sockets.take(0, 1, 0.0)
    assert sockets.take(0, OTHER, 0.1)
    assert not sockets.take(0, 3, 0.2)
    assert sockets.take(0, 3, SECONDS_TO_APPEAR)


def test_a_thread_that_asks_again_or_has_ended_has_what_it_asked_for_or_never_will() -> None:
    sockets = NetlinkSockets(1)
    assert all(sockets.take(0, 1, 0.1 * number) for number in range(9))
    assert not sockets.take(0, 2, 0.9)
    gone = NetlinkSockets(1)
    # No thread has such a number.
    assert gone.take(0, 1 << 30, 0.0)
    assert gone.take(0, 2, 0.1)


def test_the_kernel_tells_how_many_there_are() -> None:
    before = count_sockets()
    assert before is not None
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0):
        assert (count_sockets() or 0) >= 1


def test_how_many_there_may_be_goes_by_memory_and_buffers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("rmem", "wmem"):
        (tmp_path / f"net/core/{name}_max").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"net/core/{name}_max").write_text("1048576")
    monkeypatch.setattr(kernel_bounds, "_SETTINGS", tmp_path)
    kernel_bounds._netlink_bytes.cache_clear()
    assert [most_netlink_sockets(mib) for mib in (32, 512, 1024, 1 << 20)] == [8, 16, 32, 64]
    kernel_bounds._netlink_bytes.cache_clear()
