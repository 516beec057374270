"""Harbor's own runner over the tasks of examples/harbor, each trial in a sandbox of Callsheet's.

`make harbor-tasks` runs this.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from callsheet.client import Client

from tests.support.harbor_stack import TASKS, harbor_address
from tests.support.other_user import REPOSITORY
from tests.support.own_harbor import harbor_program, reward_of, run_harbor, trials_of

_ENVIRONMENT = "callsheet.integrations.harbor:CallsheetEnvironment"
_MIGRATED = "rename-files"
_IMPORTED = """
import json, sys, callsheet.integrations.harbor
rooms = {name.split(".")[1] for name in sys.modules if name.startswith("callsheet.")}
print(json.dumps(sorted(rooms)))
"""


async def tasks_for_harbor(directory: Path) -> Path:
    """Copies the ten tasks; that in the format of Terminal-Bench's first version is migrated by Harbor itself."""
    tasks = directory / "tasks"
    shutil.copytree(TASKS, tasks, ignore=shutil.ignore_patterns(_MIGRATED))
    words = ("harbor", "tasks", "migrate", "-i", str(TASKS / _MIGRATED), "-o", str(tasks))
    await run_harbor(*words, directory=directory)
    assert len(list(tasks.iterdir())) == 10
    return tasks


@pytest.mark.timeout(900)  # the first run installs Harbor
async def test_its_oracle_solves_all_ten_tasks_and_doing_nothing_solves_none(tmp_path: Path) -> None:
    tasks = await tasks_for_harbor(tmp_path)
    async with harbor_address(tmp_path) as address:
        for agent, expected in (("oracle", 1.0), ("nop", 0.0)):
            began = time.monotonic()
            words = [
                "harbor",
                "run",
                "-p",
                str(tasks),
                "-a",
                agent,
                "--env",
                _ENVIRONMENT,
                "--ek",
                "network=[]",
                "-n",
                "4",
            ]
            words += ["--yes", "--quiet", "--jobs-dir", str(tmp_path), "--job-name", agent]
            await run_harbor(*words, directory=tmp_path, address=address)
            rewards = {name: reward_of(trial) for name, trial in trials_of(tmp_path / agent).items()}
            sys.stderr.write(f"Harbor's {agent}: {rewards} in {time.monotonic() - began:.1f} s\n")
            assert rewards == dict.fromkeys((path.name for path in tasks.iterdir()), expected)
        async with Client(address) as client:
            jobs = await client.jobs()
            assert [job.open_trajectories for job in jobs] == [0, 0]


async def test_the_line_of_the_page(tmp_path: Path) -> None:
    page = REPOSITORY / "docs" / "how-to" / "registries.md"
    (line,) = [line.split() for line in page.read_text().splitlines() if line.startswith("    harbor run ")]
    (tmp_path / "examples").symlink_to(REPOSITORY / "examples")
    async with harbor_address(tmp_path) as address:
        told = await run_harbor(*line, directory=tmp_path, address=address)
    (trial,) = [trials_of(job) for job in (tmp_path / "jobs").iterdir()]
    assert {name: reward_of(each) for name, each in trial.items()} == {"write-file": 1.0}, told


async def test_what_it_asks_of_an_environment_and_what_is_refused(tmp_path: Path) -> None:
    program = REPOSITORY / "tests" / "support" / "harbor_calls.py"
    async with harbor_address(tmp_path) as address:
        told = await run_harbor("python", str(program), str(tmp_path / "place"), directory=tmp_path, address=address)
    assert told.split() == ["commands", "ok", "files", "ok", "images", "ok", "refusals", "ok"]


def test_the_client_is_all_that_it_takes_of_callsheet() -> None:
    python = harbor_program().parent / "python"
    said = subprocess.run([python, "-c", _IMPORTED], check=True, capture_output=True, text=True).stdout
    rooms = set(json.loads(said))
    assert "client" in rooms
    assert not rooms & {"benchmarks", "cli", "deploy", "http_server", "managers", "scheduler"}
