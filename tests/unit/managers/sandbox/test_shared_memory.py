"""How the agent counts anonymous shared memory, without a kernel that asks."""

from __future__ import annotations

import mmap
import os

import pytest
from callsheet.managers.sandbox.agent.shared_memory import SECONDS_TO_APPEAR, Allowed, SharedMemory, find_inodes

MOST = 100


def counting(*allowed: tuple[int, int], now: float = 0.0) -> SharedMemory:
    """Returns one that has allowed sizes to threads at a time."""
    memory = SharedMemory(MOST)
    memory.allowed = [Allowed(size, thread, now) for size, thread in allowed]
    return memory


def total(memory: SharedMemory) -> int:
    return sum(allowed.size for allowed in memory.allowed)


def test_what_appeared_counts_until_its_inode_is_gone() -> None:
    memory = counting((60, 1))
    memory.update({b"5"}, complete=True, thread=2, now=1.0)
    assert total(memory) == 60
    memory.update({b"5"}, complete=True, thread=1, now=1000.0)
    assert total(memory) == 60
    memory.update(set(), complete=True, thread=2, now=1000.0)
    assert total(memory) == 0


def test_what_has_not_appeared_counts_until_its_thread_asks_again() -> None:
    memory = counting((60, 1))
    memory.update(set(), complete=True, thread=2, now=1.0)
    assert total(memory) == 60
    memory.update(set(), complete=True, thread=1, now=1.0)
    assert total(memory) == 0


def test_what_has_not_appeared_counts_for_a_while() -> None:
    memory = counting((60, 1))
    memory.update(set(), complete=True, thread=2, now=SECONDS_TO_APPEAR + 1)
    assert total(memory) == 0


def test_what_overlaps_is_let_go_together() -> None:
    memory = counting((60, 1), (1, 2))
    memory.update({b"5", b"6"}, complete=True, thread=3, now=1.0)
    memory.update({b"6"}, complete=True, thread=3, now=1.0)
    assert total(memory) == 61
    memory.update(set(), complete=True, thread=3, now=1.0)
    assert total(memory) == 0


def test_nothing_is_let_go_while_a_process_hides() -> None:
    memory = counting((60, 1))
    memory.update({b"5"}, complete=True, thread=2, now=1.0)
    memory.update(set(), complete=False, thread=2, now=1000.0)
    assert total(memory) == 60


def test_inodes_are_found_in_other_processes() -> None:
    before, _ = find_inodes()
    with mmap.mmap(-1, 1 << 20) as memory:
        memory[0] = 1
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(writer)
            os.read(reader, 1)
            os._exit(0)
        try:
            assert find_inodes()[0] - before
        finally:
            os.close(reader)
            os.close(writer)
            os.waitpid(child, 0)


@pytest.mark.parametrize(("size", "fits"), [(40, True), (41, False)])
def test_a_request_must_fit_beside_what_is_there(size: int, fits: bool) -> None:
    assert counting((60, 1), now=1e12).take(size, 2, 1e12) == fits
