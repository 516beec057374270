"""The environment of docs/how-to/write-an-environment.md, as it stands there, with commands as plain processes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from callsheet.client import Trajectory
from callsheet.environments import Message, roll_out

from tests.support.local_episodes import LocalEpisode

_PAGE = Path(__file__).parents[4] / "docs/how-to/write-an-environment.md"


class _Saying:
    """Replies with one text."""

    def __init__(self, text: str) -> None:
        self._text = text

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[object]) -> Message:
        del trajectory, messages, tools
        return {"role": "assistant", "content": self._text}

    async def samples(self, trajectory: Trajectory) -> tuple[()]:
        del trajectory
        return ()


@pytest.mark.parametrize(("said", "score"), [("wc -l <numbers.txt >answer.txt", 1.0), ("echo 7 >answer.txt", 0.0)])
async def test_the_pages_environment_scores_what_it_says(tmp_path: Path, said: str, score: float) -> None:
    found = re.search(r"```python\n(.*?)```", _PAGE.read_text(), re.DOTALL)
    assert found is not None
    module: dict[str, Any] = {}
    exec(found[1], module)
    tasks = module["CountingTasks"](count=3)
    task = tasks.tasks()[2]
    job = await LocalEpisode(tmp_path, tmp_path).client.open_job("job")
    record = await roll_out(job, "t", tasks.environment(task), task, _Saying(said))
    assert record.failure is None
    assert record.score is not None
    assert record.score.value == score
