"""Processes of an earlier commit are replaced by today's, one after another, in both orders: nothing is lost for it."""

from __future__ import annotations

import subprocess
import tarfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import anyio
import pytest

from tests.support.clusters import ROOT
from tests.support.five_hosts import TRAJECTORIES, FiveHosts, five_hosts
from tests.support.host_load import DONE

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(240)]
# Its journal has an earlier schema, which today's scheduler migrates.
_EARLIER = "c2d6b1cb"
# The last one before more than one machine was tested: what managers and clients of a cluster may still run.
_OLDEST = "0f2f05e5"
_ROOMS = {"protos", "common", "scheduler", "managers", "deploy", "clients"}
# The default. Managers of that commit waited up to 5 s between dials, whatever their lease was.
_LEASE_S = 15.0
_ALL_DONE = {DONE: TRAJECTORIES}


def _sources_of(commit: str, directory: Path) -> list[Path]:
    tree = subprocess.run(["git", "ls-tree", "-d", "--name-only", commit], cwd=ROOT, capture_output=True, check=False)
    if tree.returncode:
        pytest.skip(f"needs the commit {commit} in the history: {tree.stderr.decode()}")
    rooms = sorted(_ROOMS & set(tree.stdout.decode().split()))
    archive = subprocess.run(["git", "archive", commit, *rooms], cwd=ROOT, capture_output=True, check=True)
    with tarfile.open(fileobj=BytesIO(archive.stdout)) as files:
        files.extractall(directory, filter="data")
    return [directory / room for room in rooms]


async def _replace_scheduler(five: FiveHosts) -> None:
    """Kills the scheduler under load, and starts today's on its journal."""

    async def replace() -> None:
        await five.scheduler.kill()
        five.sources = ()
        five.scheduler = five.new_scheduler()
        await five.scheduler.start()

    assert await five.load(replace) == _ALL_DONE


async def _replace_managers(five: FiveHosts, sources: Sequence[Path] = ()) -> None:
    """Stops each manager while nothing runs there, and starts today's, or those of a commit."""
    five.sources = sources
    for place, manager in enumerate(five.managers):
        await manager.stop()
        five.managers[place] = five.new_manager(place)
    async with anyio.create_task_group() as tasks:
        for manager in five.managers:
            tasks.start_soon(manager.start)


@pytest.mark.parametrize("first", ["scheduler", pytest.param("managers", marks=pytest.mark.nightly)])
async def test_an_upgrade_in_either_order_loses_nothing(tmp_path: Path, first: str) -> None:
    earlier = _sources_of(_EARLIER, tmp_path / "earlier")
    steps = {"scheduler": _replace_scheduler, "managers": _replace_managers}
    order = [steps.pop(first), *steps.values()]
    async with five_hosts(tmp_path, earlier, _LEASE_S) as five:
        for step in order:
            await step(five)
            for sources in (earlier, []):
                five.sources = sources
                assert await five.load() == _ALL_DONE


async def test_old_managers_and_clients_serve_and_are_served_by_todays_scheduler(tmp_path: Path) -> None:
    oldest = _sources_of(_OLDEST, tmp_path / "oldest")
    async with five_hosts(tmp_path, [], _LEASE_S) as five:
        await _replace_managers(five, oldest)
        for sources in (oldest, []):
            five.sources = sources
            assert await five.load() == _ALL_DONE
