"""A trainer that is killed in the middle of a step, and started again within its job's grace and after it."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import pytest

pytest.importorskip("trl")

from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import SchedulerStatus

from tests.trainers.stacks import wait_for

ROOT = Path(__file__).resolve().parents[2]
BEGUN = 6
"""Commands after which the trainer is killed."""


def start(*arguments: object) -> subprocess.Popen[str]:
    """Starts a training run."""
    command = [sys.executable, "-m", "tests.trainers.killable_trainer", *map(str, arguments)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def columns_of(run: subprocess.Popen[str]) -> dict[str, list[Any]]:
    """Waits for the end of a run; returns what its rollout returned."""
    said, _ = run.communicate(timeout=300)
    assert run.returncode == 0
    (line,) = [line for line in said.splitlines() if line.startswith('{"prompt_ids"')]
    found: dict[str, list[Any]] = json.loads(line)
    return found


def lines_of(log: Path) -> list[str]:
    """The commands that have run, as they told."""
    return log.read_text().split() if log.exists() else []


def status_of(address: str) -> SchedulerStatus:
    """What the scheduler knows."""

    async def ask() -> SchedulerStatus:
        async with AdminClient(address) as admin:
            return await admin.status()

    return anyio.run(ask)


def kill_in_mid_step(run: subprocess.Popen[str], log: Path) -> None:
    """Kills a run once some of its commands have begun."""
    wait_for("commands of the step", lambda: len(lines_of(log)) >= BEGUN or run.poll() is not None)
    run.kill()
    run.communicate()
    assert run.returncode == -9


def nothing_is_held(address: str) -> bool:
    """Whether no trajectory is open, nothing runs, and no sandbox is left."""
    status = status_of(address)
    return all(manager.sandboxes == manager.attempts == 0 for manager in status.managers)


@pytest.mark.parametrize("grace_s", [120, 1], ids=["within", "after"])
def test_no_action_runs_twice(address: str, model_directory: Path, tmp_path: Path, grace_s: int) -> None:
    log, job_id = tmp_path / "log", f"killed-{uuid.uuid4().hex[:8]}"
    arguments = (address, job_id, model_directory, log, grace_s)
    kill_in_mid_step(start(*arguments), log)
    if grace_s == 1:
        wait_for("the end of the grace", lambda: nothing_is_held(address))
    ran_before = set(lines_of(log))
    found = columns_of(start(*arguments))
    counts = Counter(lines_of(log))
    assert [name for name, count in counts.items() if count > 1] == []
    assert ran_before <= set(counts)
    assert len(found["completion_ids"]) == 8
    assert found["callsheet_excluded"] == [False] * 8
    names = found["callsheet_trajectory"]
    if grace_s == 1:
        # What was cut off began anew, as other trajectories.
        assert any("~" in name for name in names)
    else:
        assert not any("~" in name for name in names)
        assert {line.partition("#")[0] for line in ran_before} <= set(names)
    wait_for("what it held", lambda: nothing_is_held(address))
