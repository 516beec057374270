"""The event loops of callers that have none."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from callsheet.client.sync.loop_thread import loop_thread


async def _thread() -> threading.Thread:
    return threading.current_thread()


async def _nested() -> None:
    loop_thread("test").run(_thread())


def test_all_callers_of_a_name_share_a_thread() -> None:
    thread = loop_thread("test").run(_thread())
    assert loop_thread("test").run(_thread()) is thread
    assert loop_thread("another").run(_thread()) is not thread


def test_a_blocking_call_in_the_thread_itself_is_refused_and_nothing_hangs() -> None:
    with pytest.raises(RuntimeError, match='in the thread "test"'):
        loop_thread("test").run(_nested())


_EXIT = """
import asyncio
from callsheet.client.sync.loop_thread import loop_thread

async def wait(name):
    try:
        await asyncio.Event().wait()
    finally:
        print(name, "ends", flush=True)

async def started(name):
    waits.append(asyncio.ensure_future(wait(name)))
    await asyncio.sleep(0)

waits = []
for name in ("one", "two"):
    loop_thread(name).run(started(name))
"""


def test_what_runs_at_exit_is_cancelled() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _EXIT], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, sorted(done.stdout.splitlines()), done.stderr) == (0, ["one ends", "two ends"], "")
