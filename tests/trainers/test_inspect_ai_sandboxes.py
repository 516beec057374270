"""inspect-ai's own check of sandboxes over Callsheet's, and evaluations that find them by the entry point."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from callsheet.client import Client, NotFoundError
from callsheet.integrations.inspect_ai import CallsheetSandbox, CallsheetSandboxEnvironment
from inspect_ai import Task, eval_async
from inspect_ai.dataset import Sample
from inspect_ai.scorer import Score, Target, accuracy, scorer
from inspect_ai.solver import TaskState, solver
from inspect_ai.tool import bash
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    SandboxUserUnsupportedError,
    sandbox,
)
from inspect_ai.util._sandbox import self_check
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

from tests.trainers.stacks import running_stack

pytestmark = pytest.mark.anyio

# What a sandbox of Callsheet does not do, by the name of the check.
DIFFERENT = {
    "test_exec_as_user": "a sandbox has one user",
    "test_exec_large_command": "a command has at most 1 MiB, its words and variables together",
}


@pytest.fixture(scope="module")
def sandboxes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a stack listens whose sandboxes are real ones."""
    with running_stack(tmp_path_factory.mktemp("stack") / "data", None, "--isolation", "bubblewrap") as address:
        yield address


@pytest.fixture(scope="module")
async def shared(sandboxes: str) -> AsyncIterator[SandboxEnvironment]:
    """One sandbox, as Inspect makes it for a sample."""
    config = CallsheetSandbox(scheduler=sandboxes, job="self-check", memory_mib=1024, disk_mib=512)
    made = await CallsheetSandboxEnvironment.sample_init("check", config, {})
    yield made["default"]
    await CallsheetSandboxEnvironment.sample_cleanup("check", config, made, False)


@pytest.fixture
def sandbox_env(request: pytest.FixtureRequest, shared: SandboxEnvironment) -> SandboxEnvironment:
    """What the checks ask for; those that are different here must fail."""
    if reason := DIFFERENT.get(request.node.originalname):
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    return shared


def test_all_checks_were_collected(request: pytest.FixtureRequest, note: Callable[[str], None]) -> None:
    collected = {item.originalname for item in request.session.items if isinstance(item, pytest.Function)}
    assert set(self_check.__all__) - collected == set()
    checks = len(self_check.__all__)
    note(f"inspect-ai's self check: {checks} checks, {checks - len(DIFFERENT)} of them are to pass")


async def test_output_beyond_the_limit_is_an_error_and_not_cut_off(shared: SandboxEnvironment) -> None:
    with pytest.raises(OutputLimitExceededError) as caught:
        await shared.exec(["sh", "-c", "head -c 11000000 /dev/zero | tr '\\0' x"])
    assert caught.value.truncated_output.startswith("xxxx")


async def test_what_was_printed_before_a_timeout_is_told(shared: SandboxEnvironment) -> None:
    with pytest.raises(TimeoutError) as caught:
        await shared.exec(["sh", "-c", "echo so far; sleep 30"], timeout=1)
    assert caught.value.truncated_output == "so far\n"  # type: ignore[attr-defined]


async def test_programs_and_directories_that_are_not_there_are_ordinary_failures(shared: SandboxEnvironment) -> None:
    assert (await shared.exec(["no-such-program"])).returncode == 127
    failed = await shared.exec(["ls"], cwd="/no-such-place")
    assert (failed.success, "bad_working_directory" in failed.stderr) == (False, True)


async def test_its_own_user_has_two_names(shared: SandboxEnvironment) -> None:
    for name in ("sandbox", "1000"):
        assert (await shared.exec(["id", "-u"], user=name)).stdout == "1000\n"
    for name in ("root", "0", ""):
        with pytest.raises(SandboxUserUnsupportedError, match="must be '1000' or 'sandbox'"):
            await shared.exec(["id", "-u"], user=name)


@solver
def uses_its_tool() -> Any:
    """Does what a model's call of the tool does."""

    async def solve(state: TaskState, generate: Any) -> TaskState:
        await bash(timeout=20)("tr a-z A-Z <given >made")
        return state

    return solve


@solver
def closes_its_sandbox(address: str, job: str) -> Any:
    """Loses the sandbox of a sample, as a node's end does."""

    async def solve(state: TaskState, generate: Any) -> TaskState:
        async with Client(address) as client:
            (open_one,) = await client.job(job).trajectories()
            await client.job(job).trajectory(open_one.trajectory_id).cancel("gone")
        await sandbox().exec(["true"])
        return state

    return solve


@scorer(metrics=[accuracy()])
def made_it() -> Any:
    """Looks into the sandbox."""

    async def score(state: TaskState, target: Target) -> Score:
        return Score(value="C" if await sandbox().read_file("made") == target.text else "I")

    return score


def spec(address: str, job: str, **about: Any) -> SandboxEnvironmentSpec:
    return SandboxEnvironmentSpec("callsheet", CallsheetSandbox(scheduler=address, job=job, **about))


async def open_trajectories(address: str, job: str) -> int:
    async with Client(address) as client:
        return len(await client.job(job).trajectories())


async def test_an_evaluation_finds_it_by_its_name(
    sandboxes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, note: Callable[[str], None]
) -> None:
    monkeypatch.setenv("CALLSHEET_SCHEDULER", sandboxes)
    samples = [Sample(f"{n}", target=f"TEXT {n}", files={"given": f"text {n}"}, setup="echo begun") for n in range(6)]
    (log,) = await eval_async(
        Task(samples, solver=uses_its_tool(), scorer=made_it()),
        model="mockllm/model",
        sandbox="callsheet",
        log_dir=str(tmp_path),
        log_level="warning",
    )
    assert log.status == "success", log.error
    assert log.results is not None
    assert log.results.scores[0].metrics["accuracy"].value == 1.0
    assert await open_trajectories(sandboxes, "inspect") == 0
    note(f"inspect-ai: {len(samples)} of {len(samples)} samples scored in sandboxes by name")


async def test_a_sandbox_that_is_lost_fails_the_sample_and_is_no_score(sandboxes: str, tmp_path: Path) -> None:
    (log,) = await eval_async(
        Task([Sample("lost", target="x")], solver=closes_its_sandbox(sandboxes, "lost"), scorer=made_it()),
        model="mockllm/model",
        sandbox=spec(sandboxes, "lost"),
        fail_on_error=False,
        log_dir=str(tmp_path),
        log_level="warning",
    )
    assert log.samples is not None
    (sample,) = log.samples
    assert sample.error is not None
    assert "was closed as abandoned" in sample.error.message
    assert not sample.scores
    # What a log has of a sandbox can be read back.
    assert json.loads(log.eval.model_dump_json())["sandbox"]["config"]["job"] == "lost"
    assert CallsheetSandboxEnvironment.config_deserialize({"image": "i"}) == CallsheetSandbox(image="i")


async def test_cleanup_ends_one_sandbox_or_all(sandboxes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CALLSHEET_SCHEDULER", sandboxes)
    made = [await CallsheetSandboxEnvironment.sample_init("left", None, {}) for _ in range(2)]
    left = [each["default"].as_type(CallsheetSandboxEnvironment).sandbox for each in made]
    await CallsheetSandboxEnvironment.cli_cleanup(left[0].trajectory.trajectory_id)
    assert await open_trajectories(sandboxes, "inspect") == 1
    await CallsheetSandboxEnvironment.cli_cleanup(None)
    with pytest.raises(NotFoundError):
        await open_trajectories(sandboxes, "inspect")
    # A cleanup that finds nothing is no failure.
    await CallsheetSandboxEnvironment.cli_cleanup(None)
    await CallsheetSandboxEnvironment.cli_cleanup("no-such-one")


async def test_a_file_says_what_a_sandbox_is_to_be(sandboxes: str, tmp_path: Path) -> None:
    file = tmp_path / "sandbox.json"
    said = {"scheduler": sandboxes, "job": "file", "working_directory": "/tmp/here"}
    file.write_text(json.dumps(said))
    made = await CallsheetSandboxEnvironment.sample_init("file", str(file), {})
    assert (await made["default"].exec(["pwd"])).stdout == "/tmp/here\n"
    await CallsheetSandboxEnvironment.sample_cleanup("file", str(file), made, True)
    file.write_text(json.dumps(said | {"imgae": "python"}))
    with pytest.raises(ValueError, match="imgae"):
        await CallsheetSandboxEnvironment.sample_init("file", str(file), {})


async def test_an_image_that_is_not_there_leaves_nothing_open(sandboxes: str) -> None:
    with pytest.raises(Exception, match="no-such-image"):
        await CallsheetSandboxEnvironment.sample_init(
            "bad", CallsheetSandbox(scheduler=sandboxes, job="bad", image="no-such-image"), {}
        )
    assert await open_trajectories(sandboxes, "bad") == 0
