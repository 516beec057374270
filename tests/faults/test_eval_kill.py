"""`callsheet eval` while a manager is killed, and while it is killed itself: exactly one result for each trial."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest

from tests.support.clusters import ROOT, Cluster, open_cluster

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]

_DEADLINE_S = 100.0
_POLL_S = 0.02
_TASKS, _TRIALS = 12, 2


def _command(cluster: Cluster, results: Path, *options: str) -> list[str]:
    return [
        *(sys.executable, "-m", "callsheet.cli.main", "eval", "tests.support.nap_environment:NapTasks"),
        *("--scheduler", cluster.address, "--policy", "tests.support.nap_environment:NappingPolicy"),
        # So long that a step which was seen to start is still under way when its manager is killed.
        *("--task-option", "step_s=0.5", "--task-option", f"count={_TASKS}"),
        *("--trials", f"{_TRIALS}", "--concurrency", "16"),
        *("--results", str(results), "--json", *options),
    ]


def _lines(results: Path) -> list[dict[str, Any]]:
    if not results.exists():
        return []
    content = results.read_bytes()
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


async def _start(command: list[str]) -> anyio.abc.Process:
    return await anyio.open_process(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, stderr=None)


async def _until(results: Path, count: int, status: str, evaluation: anyio.abc.Process) -> None:
    """Waits for so many results of a status; what another process writes is no event here."""
    while sum(line["status"] == status for line in _lines(results)) < count:
        assert evaluation.returncode is None, f"it ended before {count} results were {status}"
        await anyio.sleep(_POLL_S)


async def _until_a_step_starts(start_log: Path, evaluation: anyio.abc.Process) -> None:
    """Waits for one more step of a trial on the manager of that log: between two trials it has nothing to lose."""

    def count() -> int:
        return start_log.read_text().count('"kind": "env_step"') if start_log.exists() else 0

    before = count()
    while count() == before:
        assert evaluation.returncode is None, "it ended before another step started"
        await anyio.sleep(_POLL_S)


def _check(results: Path) -> Counter[str]:
    """Each trial has exactly one result: a score, or a failure with a name."""
    lines = _lines(results)
    assert len(lines) == _TASKS * _TRIALS
    assert {(line["task"], line["trial"]) for line in lines} == {
        (f"nap-{task}", trial) for task in range(_TASKS) for trial in range(_TRIALS)
    }
    for line in lines:
        if line["status"] == "infra":
            assert line["score"] is None
            assert line["failure"]["kind"] == "INFRA"
            assert line["failure"]["reason"]
        else:
            assert line["status"] == "scored"
            assert line["score"] is not None
    return Counter(line["status"] for line in lines)


async def test_each_trial_has_one_result_whatever_is_killed(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    with anyio.fail_after(_DEADLINE_S):
        async with open_cluster(tmp_path, managers=2, lease_s=1.0) as cluster:
            # What is lost is not tried again, so that it is named.
            command = _command(cluster, results, "--infra-retries", "0")
            evaluation = await _start(command)
            await _until(results, 4, "scored", evaluation)
            await _until_a_step_starts(cluster.start_log(0), evaluation)
            await cluster.managers[0].kill()
            await _until(results, 1, "infra", evaluation)
            evaluation.kill()
            await evaluation.wait()
            kept = _lines(results)
            with results.open("ab") as file:
                file.write(b'{"task":"nap-0","trial":')  # torn, as by a crash
            await cluster.managers[0].start()
            again = await anyio.run_process(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)
    statuses = _check(results)
    assert _lines(results)[: len(kept)] == kept
    assert again.returncode == 3, again.stderr.decode()
    told = json.loads(again.stdout)
    assert (told["results"], told["scored"]) == (_TASKS * _TRIALS, statuses["scored"])
