"""The coding task set as a model meets it: a fenced block fixes the bug, and the package's own tests score it."""

from __future__ import annotations

import io
import os
import pickle
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from callsheet.benchmarks.demo.inputs import DemoInputs, prepare_inputs
from callsheet.client import Client, Command, Demand, EnvStep, Trajectory, Where
from callsheet.client.admin import AdminClient
from callsheet.client.admin_values import ActionState
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.environments import EpisodeEnd, EpisodeTask, Message, load_task_set, roll_out, task_set_names
from callsheet.environments.coding.mutation import BUGS, Bug, CodingTask, prepare_task
from callsheet.environments.coding.packages import (
    PythonPackage,
    SourceRelease,
    SourceReleaseError,
    default_cache_directory,
)
from callsheet.environments.coding.tasks import CodingTasks, coding_world, project_of, task_id_of
from callsheet.environments.environment import EpisodeScore
from callsheet.environments.sandbox_environment import SandboxEnvironment
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import CoreSharing, Isolation

from tests.support.local_episodes import LocalEpisode
from tests.support.real_sandboxes import until_state

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


_COUNTING = """
import os, pathlib, pytest
@pytest.mark.parametrize("number", range(3))
def test_that_notes_its_process(number):
    seen = pathlib.Path("processes")
    seen.mkdir(exist_ok=True)
    (seen / str(os.getpid())).touch()
    assert number or {passes}
"""


def _release_of_three_files() -> SourceRelease:
    """A package whose tests note which process ran them; one of nine fails."""
    package = PythonPackage("counted", "1.0", "", ".", ("tests",))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for index in range(3):
            content = _COUNTING.format(passes=index > 0).encode()
            member = tarfile.TarInfo(f"{package.root}/tests/test_{index}.py")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return SourceRelease(package, packed.getvalue())


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores that this process may use")
async def test_the_suite_runs_in_as_many_processes_as_it_was_granted_cores(inputs: DemoInputs, tmp_path: Path) -> None:
    release = _release_of_three_files()
    task = CodingTask(Bug("counted", "source.py", "f", 0, "tests"), release, "", 1, "", ())
    environment = SandboxEnvironment(coding_world(task))
    settings = StackSettings(
        tmp_path,
        managers=(Role.SANDBOX,),
        cpus=2,
        given={
            "isolation": Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE,
            "share_cores": CoreSharing.RESERVED,
        },
        arguments={Role.SANDBOX: ["--stage", str(inputs.staged)]},
    )
    one, world = Demand(cpu=1), coding_world(task)
    async with (
        local_stack(settings) as stack,
        Client(stack.address) as client,
        AdminClient(stack.address) as admin,
        await client.open_job("job") as job,
        job.trajectory("other") as other,
    ):
        (await other.env_reset(demand=one)).unwrap()
        for width in (2, 1):
            if width == 1:
                holding = await other.submit(EnvStep(Command.argv("sleep", "1000")), demand=one)
                await until_state(admin, "job", holding.action_id, ActionState.RUNNING)
            async with job.trajectory(f"scored-{width}") as scored:
                await environment.reset(scored)
                score = await environment.reward(scored)
                # Of the processes of a copy nothing is left.
                (
                    await scored.reward_tests(
                        world.reward, files=world.reward_files, where=Where.IN_SANDBOX, demand=world.reward_demand
                    )
                ).unwrap()
                seen = (await scored.env_step("ls judge-*/processes | wc -l", demand=Demand())).unwrap()
            assert score == EpisodeScore(8 / 9, {"tests": 9.0, "tests_passed": 8.0})
            assert int(seen.stdout) == width


def test_every_bug_is_a_task_of_its_own() -> None:
    assert {"coding", "frozen-lake"} <= set(task_set_names())
    tasks = load_task_set("coding").tasks()
    assert len({task.task_id for task in tasks}) == len(tasks) == len(BUGS)
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    assert load_task_set("coding", seed=1).tasks() != tasks
    with pytest.raises(ValueError, match="nope"):
        CodingTasks(packages="nope")
