"""Worker processes for simulations."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def worker_pool(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Gives a pool of fresh processes; where the block fails or is interrupted, they end at once, busy or not."""
    others = set(multiprocessing.active_children())
    # Not fork: the parent may have threads (progress, a test's).
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_leave_interrupts_to_the_parent) as pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            # A simulation takes minutes, and nobody wants its result.
            for worker in set(multiprocessing.active_children()) - others:
                worker.kill()
            raise


def map_in_processes(
    function: Callable[[T], R], items: Sequence[T], processes: int, done: Callable[[T, R], None]
) -> list[R]:
    """The function's results, in the order of its items.

    Args:
        function: Of a module, so that processes can find it. What it raises is raised.
        items: What it is called with.
        processes: At once; with one, or for one item, it is called here.
        done: Told of every result as it comes.
    """
    results: dict[int, R] = {}
    if min(processes, len(items)) <= 1:
        for place, item in enumerate(items):
            results[place] = function(item)
            done(item, results[place])
        return list(results.values())
    with worker_pool(min(processes, len(items))) as pool:
        places = {pool.submit(function, item): place for place, item in enumerate(items)}
        for future in as_completed(places):
            place = places[future]
            results[place] = future.result()
            done(items[place], results[place])
    return [results[place] for place in range(len(items))]


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C in a terminal reaches all processes of the command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
