"""Worker processes for simulations."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager


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


def _leave_interrupts_to_the_parent() -> None:
    """Ctrl-C in a terminal reaches all processes of the command."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
