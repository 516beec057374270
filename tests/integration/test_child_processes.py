"""Starting, watching and stopping processes, with real ones."""

from __future__ import annotations

import os
import select
import signal
from pathlib import Path

import anyio
import pytest
from callsheet.managers.supervision.processes import ProcessFailedError, describe_exit, run_process

from tests.support.child_process import child_spec

pytestmark = pytest.mark.anyio


async def test_a_ready_process_is_stopped_by_sigterm_at_the_end_of_the_block() -> None:
    async with run_process(child_spec("quiet")) as process:
        assert process.facts["pid"] == str(process.pid)
        assert process.returncode is None
    assert process.returncode == -signal.SIGTERM
    assert describe_exit(process) == "signal SIGTERM"


async def test_the_parents_variables_are_gone_from_the_childs_environment() -> None:
    async with run_process(child_spec("quiet")) as process:
        assert process.facts["leaked"] == ""


async def test_a_process_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    async with run_process(child_spec("stubborn"), grace_s=0.1) as process:
        pass
    assert process.returncode == -signal.SIGKILL


async def test_a_process_that_ends_before_it_is_ready_is_named_with_its_last_words(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    with pytest.raises(ProcessFailedError, match="child ended before it was ready") as caught:
        async with run_process(child_spec("fail", log_path=log)):
            pytest.fail("it never became ready")
    assert "exit code 3" in str(caught.value)
    assert "the disk is on fire" in str(caught.value)


async def test_a_process_that_says_nothing_is_given_up_and_gone() -> None:
    with pytest.raises(ProcessFailedError, match=r"child was not ready after 0\.5 s"):
        async with run_process(child_spec("silent", ready_timeout_s=0.5), grace_s=5.0):
            pytest.fail("it never became ready")


async def test_a_cancelled_block_stops_its_process() -> None:
    with anyio.CancelScope() as scope:
        async with run_process(child_spec("quiet")) as process:
            scope.cancel()
            await anyio.sleep_forever()
    assert process.returncode == -signal.SIGTERM


async def test_a_child_dies_with_its_parent_whatever_kills_the_parent() -> None:
    async with run_process(child_spec("parent")) as parent:
        grandchild = os.pidfd_open(int(parent.facts["child"]))
        try:
            parent.kill()
            readable = await anyio.to_thread.run_sync(lambda: select.select([grandchild], [], [], 30.0)[0])
        finally:
            os.close(grandchild)
    assert readable == [grandchild], "the child outlived its parent"
