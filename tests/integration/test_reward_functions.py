"""Rewards that are functions of installed packages, in real sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from callsheet.client import (
    Client,
    Failed,
    FailureKind,
    Job,
    RewardScript,
    SandboxFile,
    Succeeded,
    Where,
)
from callsheet.client.words.outcomes import Reason
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation

from tests.support.expected import expect
from tests.support.grader_package import MODULE, stage_graders

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def job(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Job]:
    """A job where a sandbox manager shows the package to its sandboxes."""
    isolation = Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE
    directory = tmp_path_factory.mktemp("graders")
    stages = (stage_graders(directory),)
    settings = StackSettings(
        directory / "data", managers=(Role.SANDBOX,), given={"isolation": isolation, "stage": stages}
    )
    async with local_stack(settings) as stack, Client(stack.address) as client, await client.open_job("j") as opened:
        yield opened


async def test_functions_score_and_their_failures_are_no_scores(job: Job) -> None:
    right = expect(Succeeded, await job.reward_function(f"{MODULE}:exact", {"answer": "42", "expected": "42"}))
    assert right.value.score == 1.0
    assert right.value.command is not None
    assert right.value.command.stdout == b"graded 42\n"
    wrong = await job.reward_function(f"{MODULE}:exact", {"answer": "41", "expected": "42"})
    assert wrong.unwrap().score == 0.0
    close = await job.reward_function(f"{MODULE}:closeness", {"answer": "43", "expected": 42})
    assert close.unwrap().components == {"score": 0.5, "length": 2.0}
    assert (await job.reward_function(f"{MODULE}:size", {"text": "x" * 300_000})).unwrap().score == 300_000
    for function, arguments, word in (
        (f"{MODULE}:exact", {"answer": "42"}, "TypeError"),
        (f"{MODULE}:nonsense", {}, "ValueError"),
        (f"{MODULE}:missing", {}, "AttributeError"),
        ("no_such_package.here:f", {}, "ModuleNotFoundError"),
    ):
        failed = expect(Failed, await job.reward_function(function, arguments))
        assert (failed.kind, failed.reason) == (FailureKind.ENV, Reason.SCRIPT_FAILED)
        assert word in failed.message


async def test_a_function_sees_nothing_of_its_trajectory(job: Job) -> None:
    async with job.trajectory("t") as trajectory:
        mean = await trajectory.reward_function("statistics:mean", {"data": [1, 2]})
        assert mean.unwrap().score == 1.5, "it needs no sandbox of the trajectory"
        (await trajectory.env_reset(files=[SandboxFile("planted.py", b"raise SystemExit")])).unwrap()
        assert (await trajectory.reward_function(f"{MODULE}:files", {"top": "."})).unwrap().score == 0.0
        before = RewardScript("ls | wc -l > {score}")
        assert (await (await trajectory.submit(before))).unwrap().score == 1.0, "a copy has its file"
        empty = RewardScript("ls | wc -l > {score}", where=Where.EMPTY)
        assert (await (await trajectory.submit(empty))).unwrap().score == 0.0
