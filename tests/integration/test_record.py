"""A real job, recorded by the command and replayed by the simulator."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from callsheet.client import Client, Job, Sampling, Succeeded
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

from tests.support.command_line import invoke

pytestmark = pytest.mark.anyio
TRAJECTORIES = 70
"""More than are asked for together."""


async def _run(job: Job, number: int) -> None:
    async with job.trajectory(f"t{number:03}") as trajectory:
        outcomes = [
            await trajectory.env_reset(label="make", service="noop", task="sum", expected_duration_s=0.01),
            await trajectory.generate([1, 2], Sampling(max_new_tokens=4), model="noop"),
            await trajectory.env_step("echo secret-command", label="secretless", task="sum"),
        ]
        assert all(isinstance(each, Succeeded) for each in outcomes), outcomes


async def _command(*arguments: str) -> Any:
    return await anyio.to_thread.run_sync(lambda: invoke(*arguments))


def check(path: Path, packed: Path) -> None:
    """Both have all that ended and ran, and nothing of what was in it."""
    text = path.read_text()
    assert "secret-command" not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert sorted(each["id"] for each in lines) == [f"t{number:03}" for number in range(TRAJECTORIES)]
    with gzip.open(packed, "rt") as file:
        assert {json.loads(line)["id"] for line in file} == {each["id"] for each in lines}
    for each in lines:
        assert (each["job"], each["task"], each["reset"]["label"]) == ("j", "sum", "make")
        (turn,) = each["turns"]
        assert [step["label"] for step in turn["actions"]] == ["secretless"]
        assert turn["generation"]["seconds"] > 0
    assert not list(path.parent.glob("*.part"))


async def test_a_job_is_recorded_while_it_runs_and_once_it_is_closed(tmp_path: Path) -> None:
    settings = StackSettings(tmp_path / "data", managers=(Role.NOOP,), cpus=2)
    async with local_stack(settings) as stack, Client(stack.address) as client:
        job = await client.open_job("j", share=1.0)
        async with anyio.create_task_group() as tasks:
            for number in range(TRAJECTORIES):
                tasks.start_soon(_run, job, number)
        await job.trajectory("open").open()
        await job.tool_call("noop", "no-trajectory")
        async with job.trajectory("nothing-ran"):
            pass
        path = tmp_path / "open.jsonl"
        told = await _command("record", "j", "--scheduler", stack.address, "-o", str(path), "--json")
        assert told.exit_code == 0, told.stderr
        assert json.loads(told.stdout)["trajectories"] == TRAJECTORIES
        await job.close()
        packed = tmp_path / "closed.jsonl.gz"
        told = await _command("record", "j", "--scheduler", stack.address, "--output", str(packed))
        assert (told.exit_code, told.stdout) == (0, f"{TRAJECTORIES} trajectories of job j in {packed}\n")
        unknown = await _command("record", "nobody", "--scheduler", stack.address, "-o", str(path))
        assert unknown.exit_code == 1
        assert "nobody" in unknown.stderr
        nowhere = await _command("record", "j", "--scheduler", stack.address, "-o", str(tmp_path / "no" / "t.jsonl"))
        assert (nowhere.exit_code, "output: " in nowhere.stderr) == (1, True)
        linked, pipe = tmp_path / "linked.jsonl", tmp_path / "pipe"
        linked.symlink_to(path)
        os.mkfifo(pipe)
        assert (await _command("record", "j", "--scheduler", stack.address, "-o", str(linked))).exit_code == 0
        read: list[str] = []
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_command, "record", "j", "--scheduler", stack.address, "-o", str(pipe))
            read += await anyio.to_thread.run_sync(lambda: pipe.read_text().splitlines(), abandon_on_cancel=True)
        # What is no file, and what leads to one, stay what they are.
        assert (len(read), pipe.is_fifo(), linked.is_symlink()) == (TRAJECTORIES, True, True)
    gone = await _command("record", "j", "--scheduler", stack.address, "-o", str(path))
    assert (gone.exit_code, "output" in gone.stderr, "callsheet up" in gone.stderr) == (1, False, True)
    check(path, packed)
    replayed = await _command(
        "bench", "sim", "--trace", str(path), "--cores", "2", "--policy", "callsheet", "--json", "--processes", "1"
    )
    assert replayed.exit_code == 0, replayed.stderr
    report = json.loads(replayed.stdout)
    assert report["recorded"].keys() == report["policies"]["callsheet"]["kinds"].keys() == {"env_reset", "env_step"}
    assert report["recorded"]["env_step"]["actions"] == TRAJECTORIES
    shown = await _command("bench", "sim", "--trace", str(packed), "--cores", "2", "--policy", "callsheet")
    assert "as recorded and as" in shown.stdout
