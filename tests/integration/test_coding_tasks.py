"""The coding task set as a model meets it: a fenced block fixes the bug, and the package's own tests score it."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from callsheet.benchmarks.demo.inputs import DemoInputs, prepare_inputs
from callsheet.client import Trajectory
from callsheet.environments import EpisodeEnd, EpisodeTask, Message, load_task_set, roll_out, task_set_names
from callsheet.environments.coding.bugs import BUGS, prepare_task
from callsheet.environments.coding.packages import SourceReleaseError, default_cache_directory
from callsheet.environments.coding.tasks import CodingTasks, project_of, task_id_of

from tests.support.local_episodes import LocalEpisode

pytestmark = pytest.mark.anyio


class _Fixing:
    """Replies with a command, then with a word."""

    def __init__(self, command: str) -> None:
        self._replies = [f"I have found it.\n```bash\n{command}\n```", "I am done."]

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[object]) -> Message:
        del trajectory, messages, tools
        return {"role": "assistant", "content": self._replies.pop(0)}

    async def samples(self, trajectory: Trajectory) -> tuple[()]:
        del trajectory
        return ()


@pytest.fixture(scope="module")
def inputs() -> DemoInputs:
    try:
        return prepare_inputs(default_cache_directory(os.environ), lambda _: None)
    except SourceReleaseError as error:
        pytest.skip(f"the demo's inputs: {error}")


async def test_a_fenced_block_fixes_a_bug(inputs: DemoInputs, tmp_path: Path) -> None:
    tasks = CodingTasks(packages="inflection")
    bug = next(bug for bug in BUGS if bug.package == "inflection")
    release = next(release for release in inputs.releases if release.package.name == "inflection")
    prepared = prepare_task(bug, release)
    (tmp_path / "sandbox").mkdir()
    fixed = tmp_path / "fixed.py"
    fixed.write_text(release.read(bug.path))
    policy = _Fixing(f"cp {fixed} {project_of(prepared)}/{bug.path}; echo fixed")
    task = EpisodeTask("t", {"bug": task_id_of(bug)})
    job = await LocalEpisode(tmp_path / "sandbox", inputs.staged).client.open_job("job")
    record = await roll_out(job, "t", tasks.environment(task), task, policy)
    assert (record.end, record.failure, record.turns) == (EpisodeEnd.DONE, None, 2)
    assert bug.failing_test in record.messages[0]["content"]
    assert record.messages[2] == {"role": "user", "content": "fixed\n\n[exit code 0]\n"}
    assert record.score is not None
    assert record.score.value == 1.0
    assert record.score.components["tests_passed"] == record.score.components["tests"] > 400


def test_every_bug_is_a_task_of_its_own() -> None:
    assert {"coding", "frozen-lake"} <= set(task_set_names())
    tasks = load_task_set("coding").tasks()
    assert len({task.task_id for task in tasks}) == len(tasks) == len(BUGS)
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    assert load_task_set("coding", seed=1).tasks() != tasks
    with pytest.raises(ValueError, match="nope"):
        CodingTasks(packages="nope")
