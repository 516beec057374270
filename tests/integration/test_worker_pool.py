"""Worker processes of simulations, with real ones."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess

import pytest
from callsheet.benchmarks.simulator.worker_pool import worker_pool

_END_S = 60.0


def test_an_interrupt_ends_busy_workers_at_once() -> None:
    others = set(multiprocessing.active_children())
    workers: list[BaseProcess] = []

    def be_interrupted() -> None:
        with worker_pool(1) as pool:
            pool.submit(os.getpid).result(_END_S)
            pool.submit(time.sleep, 3600)
            workers.extend(set(multiprocessing.active_children()) - others)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        be_interrupted()
    (worker,) = workers
    # Not by `is_alive`: while the pool's own thread takes note of the end, it says that the worker lives.
    assert wait([worker.sentinel], _END_S)


def test_results_come_back() -> None:
    with worker_pool(1) as pool:
        assert pool.submit(abs, -3).result(_END_S) == 3
