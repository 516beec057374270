"""Forked children of a process that is connected to a real scheduler: none dies by a signal."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
import pytest
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

_DEADLINE_S = 120

# Every second child only ends; the others use a client: either it works or it says why it cannot.
_FORKS = """
import collections, os, sys
from callsheet.client import ForkedProcessError, SyncClient

def use(target):
    with SyncClient(target) as client:
        client.jobs()

connected = SyncClient.connect(sys.argv[1])
job = connected.open_job("forks")
codes = collections.Counter()
for number in range(40):
    pid = os.fork()
    if pid == 0:
        if number % 2:
            sys.exit(0)
        try:
            use(sys.argv[1])
        except ForkedProcessError:
            os._exit(7)
        os._exit(0)
    codes[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])] += 1
job.close()
connected.close()
print(dict(codes))
"""

_DATA_LOADER = """
import sys, torch
from torch.utils.data import DataLoader, Dataset
from callsheet.client import SyncClient

class Numbers(Dataset):
    def __len__(self): return 64
    def __getitem__(self, index): return index

with SyncClient.connect(sys.argv[1]) as client, client.open_job("loader") as job:
    for _ in range(2):
        loader = DataLoader(Numbers(), batch_size=4, num_workers=2)
        assert sum(int(batch.sum()) for batch in loader) == 2016
    job.status()
print("{0: 1}")
"""

_LATE = """
import logging, grpc
logging.basicConfig()
import callsheet.client, os
print({0: 1})
"""


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    settings = StackSettings(tmp_path_factory.mktemp("scheduler"), managers=())
    async with local_stack(settings) as stack:
        yield stack.address


async def _run(program: str, *arguments: str) -> tuple[dict[int, int], str]:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_ENABLE_FORK_SUPPORT"}

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=_DEADLINE_S, check=False, env=environment
        )

    done = await anyio.to_thread.run_sync(run)
    assert done.returncode == 0, done.stderr
    return ast.literal_eval(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
async def test_many_forks_of_a_connected_process(address: str) -> None:
    codes, said = await _run(_FORKS, address)
    assert set(codes) <= {0, 7}, (codes, said)


async def test_the_workers_of_a_data_loader(address: str) -> None:
    pytest.importorskip("torch")
    await _run(_DATA_LOADER, address)


async def test_it_says_when_it_is_too_late() -> None:
    _, said = await _run(_LATE)
    assert said.count("may die by SIGSEGV") == 1
