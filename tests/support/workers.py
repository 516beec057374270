"""A pytest plugin: with `pytest -n auto` several workers run tests at the same time, and what has to be alone is.

A test that is marked `alone` runs after all others as far as workers allow, and never while another test runs. Without
-n nothing here has an effect.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator

import pytest

_MOST_WORKERS = 8


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Three workers for each core, as most tests wait for processes; a worker takes about 0.5 GB of memory."""
    return min(_MOST_WORKERS, 3 * len(os.sched_getaffinity(0)))


def is_alone(item: pytest.Item) -> bool:
    """Whether no other test may run meanwhile."""
    return item.get_closest_marker("alone") is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the tests that have to be alone last."""
    items.sort(key=is_alone)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Holds a lock that tests share and that a test which has to be alone has for itself; its time limit starts then.

    What is locked is pyproject.toml, so that two runs in one directory heed each other as well.
    """
    if not hasattr(item.config, "workerinput") or item.config.inipath is None:
        return (yield)
    with item.config.inipath.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX if is_alone(item) else fcntl.LOCK_SH)
        try:
            return (yield)
        finally:
            # Not only by closing: a child that the test has forked and left behind has the file, too.
            fcntl.flock(file, fcntl.LOCK_UN)
