"""How many netlink sockets and filters the agent allows, without a kernel that asks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from callsheet.managers.sandbox.agent.bounded import SECONDS_TO_APPEAR, Bounded
from callsheet.managers.sandbox.agent.filters import Filters, filters_of
from callsheet.managers.sandbox.agent.netlink import count_sockets
from callsheet.managers.sandbox.isolation import kernel_bounds
from callsheet.managers.sandbox.isolation.kernel_bounds import most_netlink_sockets

OTHER = os.getppid()
# Filters its own calls as often as it is told, allowing all; then it waits for the end of its input.
FILTERING = """
import ctypes, struct, sys
library, program = ctypes.CDLL(None), ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
words = struct.pack("HxxxxxxQ", 1, ctypes.addressof(program))
library.prctl(38, 1, 0, 0, 0)
for _ in range(int(sys.argv[1])):
    assert library.prctl(22, 2, words, 0, 0) == 0
print("ready", flush=True)
sys.stdin.read()
"""


def test_no_more_than_the_most_are_there_at_a_time() -> None:
    sockets = Bounded(2, count_sockets)
    assert sockets.take(0, 1, 0.0)
    assert sockets.take(1, 1, 0.1)
    assert not sockets.take(2, 1, 0.2)
    assert sockets.take(1, 1, 0.3)


def test_what_has_not_appeared_counts_for_a_while() -> None:
    sockets = Bounded(2, count_sockets)
    assert sockets.take(0, 1, 0.0)
    assert sockets.take(0, OTHER, 0.1)
    assert not sockets.take(0, 3, 0.2)
    assert sockets.take(0, 3, SECONDS_TO_APPEAR)


def test_a_thread_that_asks_again_or_has_ended_has_what_it_asked_for_or_never_will() -> None:
    sockets = Bounded(1, count_sockets)
    assert all(sockets.take(0, 1, 0.1 * number) for number in range(9))
    assert not sockets.take(0, 2, 0.9)
    gone = Bounded(1, count_sockets)
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


def test_what_cannot_be_counted_is_refused() -> None:
    assert not Bounded(9, lambda: None).allows(bytearray(), 1, 0.0)
    assert Bounded(9, lambda: 8).allows(bytearray(), 1, 0.0)


@pytest.mark.parametrize("made", [0, 1, 3])
def test_filters_are_counted_by_thread(made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", FILTERING, str(made)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        own = filters_of("self")
        assert own is not None
        assert filters_of(str(process.pid)) == own + made
        listed = os.listdir
        # Of this machine's processes it sees that one alone, and one that has ended.
        processes = [str(process.pid), str(1 << 30), "self"]
        monkeypatch.setattr(os, "listdir", lambda path: processes if path == "/proc" else listed(path))
        assert Filters().count() == made
        process.stdin.close()


def test_a_kernel_that_tells_of_no_filters_allows_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("callsheet.managers.sandbox.agent.filters.NAME", b"Nothing:")
    assert Filters().count() is None
    assert filters_of(str(1 << 30)) is None
