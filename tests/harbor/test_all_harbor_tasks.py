"""All tasks of examples/harbor end to end, as root and as another user. `make harbor-tasks` runs this."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import anyio
import pytest
from callsheet.environments import load_task_set
from callsheet.environments.harbor import nothing, oracle

from tests.support.harbor_stack import TASKS, harbor_address, harbor_stack, scores_of
from tests.support.other_user import REPOSITORY, TESTS_TIMEOUT_S, run_tests_as_other_user


async def test_all_ten_tasks(tmp_path: Path) -> None:
    task_set = load_task_set("harbor", path=str(TASKS), network="none")
    names = [task.task_id for task in task_set.tasks()]
    assert len(names) == 10
    with anyio.fail_after(220):
        async with harbor_stack(tmp_path) as client:
            for name, policies, expected in (("oracle", oracle, 1.0), ("nothing", nothing, 0.0)):
                began = time.monotonic()
                scores = await scores_of(client, name, task_set, policies)
                sys.stderr.write(f"user {os.geteuid()}: {name}: {scores} in {time.monotonic() - began:.1f} s\n")
                assert scores == {task: pytest.approx(expected) for task in names}


async def test_the_lines_of_the_page(tmp_path: Path) -> None:
    page = REPOSITORY / "docs" / "how-to" / "harbor-tasks.md"
    lines = [line.split() for line in page.read_text().splitlines() if "path=examples/harbor" in line]
    assert len(lines) == 2
    async with harbor_address(tmp_path) as address:
        variables = {**os.environ, "CALLSHEET_SCHEDULER": address, "COLUMNS": "200"}
        for words, passed in zip(lines, ("100.0%", "0.0%"), strict=True):
            command = [sys.executable, "-m", "callsheet.cli.main", *words[1:]]
            with anyio.fail_after(120):
                ended = await anyio.run_process(command, cwd=REPOSITORY, env=variables, check=False)
            assert ended.returncode == 0, ended.stderr.decode()
            assert f" {passed} " in ended.stdout.decode()


if os.geteuid() == 0:

    @pytest.mark.timeout(TESTS_TIMEOUT_S + 20)
    def test_all_of_this_holds_for_an_unprivileged_user() -> None:
        run_tests_as_other_user("test_all_ten_tasks", "tests/harbor/test_all_harbor_tasks.py")
