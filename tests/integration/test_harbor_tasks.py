"""A few of the tasks of examples/harbor, in both formats; `make harbor-tasks` runs all of them."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from callsheet.environments import load_task_set
from callsheet.environments.harbor import nothing, oracle

from tests.support.harbor_stack import TASKS, harbor_stack, scores_of

FEW = ("answer-questions", "rename-files", "three-files")


async def test_an_oracle_scores_one_and_who_does_nothing_scores_zero(tmp_path: Path) -> None:
    task_set = load_task_set("harbor", path=str(TASKS), network="none")
    with anyio.fail_after(150):
        async with harbor_stack(tmp_path) as client:
            solved = await scores_of(client, "oracle", task_set, oracle, FEW)
            assert solved == {name: pytest.approx(1.0) for name in FEW}
            assert await scores_of(client, "nothing", task_set, nothing, FEW) == dict.fromkeys(FEW, 0.0)
