"""A second manager process under the id of one that answers waits; once that one is killed it takes over."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest
from callsheet.client import Client, Job, Succeeded, Timeouts
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

from tests.support.expected import expect
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
_DEADLINE_S = 100.0


@contextmanager
def manager_process(address: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A no-op manager with the id "m"."""
    command = [sys.executable, "-m", "callsheet.cli.main", "manager", "noop"]
    with (
        log.open("wb") as file,
        subprocess.Popen([*command, "--scheduler", address, "--manager-id", "m"], stderr=file) as process,
    ):
        try:
            yield process
        finally:
            process.kill()


async def serves(job: Job) -> None:
    """Checks that an action is served."""
    expect(Succeeded, await job.tool_call("noop", "call", timeouts=Timeouts(schedule_to_close_s=_DEADLINE_S)))


async def test_the_second_waits_until_the_first_is_killed(tmp_path: Path) -> None:
    first_log, second_log = tmp_path / "first.log", tmp_path / "second.log"
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(StackSettings(tmp_path / "data", managers=())) as stack, Client(stack.address) as client:
            with manager_process(stack.address, first_log) as first:
                await until(lambda: '"registered"' in first_log.read_text())
                job = await client.open_job("job")
                await serves(job)
                with manager_process(stack.address, second_log):
                    await until(lambda: second_log.read_text().count("another process that answers") > 1)
                    await serves(job)
                    assert '"registered"' not in second_log.read_text()
                    first.kill()
                    await until(lambda: '"registered"' in second_log.read_text())
                    await serves(job)
    assert first_log.read_text().count('"registered"') == 1
