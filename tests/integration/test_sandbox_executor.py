"""The sandbox executor with real sandboxes: env_reset, env_step and test-suite rewards."""

from __future__ import annotations

import os
from pathlib import Path

import anyio
import pytest
from callsheet.managers.executor import AttemptResult, Broken, Completed, Stopped
from callsheet.managers.sandbox.build import build_sandbox_executor, build_test_suite_executor
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.janitor import ManagerRunningError
from callsheet.managers.sandbox.settings import FEWEST_MEMORY_MIB, Isolation, SandboxSettings
from callsheet.v1 import action_pb2, manager_service_pb2

from tests.support.executor_runs import completed, failure, make, under_way
from tests.support.expected import expect
from tests.support.sandbox_attempts import attempt_of, inline_file, reset, step, suite
from tests.support.sandboxes import (
    Variant,
    running_commands,
    settings_for,
    tells,
    until_sleepers_are,
    until_still,
    variants,
)

pytestmark = pytest.mark.anyio

JUNIT = "<testsuite><testcase/><testcase/><testcase/><testcase><failure/></testcase></testsuite>"


@pytest.fixture(params=variants(*Isolation, others_by_night=True), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    variant: Variant = request.param
    return settings_for(variant, tmp_path)


def output(result: AttemptResult) -> str:
    assert isinstance(result, Completed), result
    return result.succeeded.env_step.stdout.inline.decode()


async def test_a_trajectory_keeps_its_sandbox(executor: SandboxExecutor) -> None:
    action = reset(inline_file("dir/data", b"content"), set_up="cat dir/data; echo made > more")
    result = expect(Completed, await executor.run(attempt_of(action, resources={"memory": 256})))
    made = result.succeeded.env_reset
    assert (made.set_up.stdout.inline, made.set_up.exit_code) == (b"content", 0)
    assert made.trajectory_id == "trajectory"
    assert result.usage.cpu_s > 0
    sandbox_id = made.sandbox_id
    assert [state.sandbox_id for state in executor.sandboxes()] == [sandbox_id]
    first = await completed(executor, step("echo step >> more; exit 7"), sandbox_id=sandbox_id)
    assert first.env_step.exit_code == 7
    second = step("cat more script", inline_file("script", b"sent"))
    assert output(await executor.run(attempt_of(second, sandbox_id=sandbox_id))) == "made\nstep\nsent"


async def test_a_sandbox_has_at_least_the_memory_that_its_agent_takes(executor: SandboxExecutor) -> None:
    result = await executor.run(attempt_of(reset(), resources={"memory": 1}))
    assert failure(result) == ("ENV", "too_little_memory")
    assert isinstance(result, Broken)
    assert "memory: 1 MiB" in result.failed.message
    assert f"at least {FEWEST_MEMORY_MIB} MiB" in result.failed.message
    assert executor.sandboxes() == []
    sandbox_id = await make(executor, memory=FEWEST_MEMORY_MIB)
    assert output(await executor.run(attempt_of(step("echo works"), sandbox_id=sandbox_id))) == "works\n"


async def test_cores_of_others_are_refused(executor: SandboxExecutor) -> None:
    sandbox_id = await make(executor)
    result = await executor.run(attempt_of(step("true"), sandbox_id=sandbox_id, cores=[1000]))
    assert failure(result) == ("INFRA", "cores_unavailable")


async def test_nothing_runs_between_actions(executor: SandboxExecutor) -> None:
    sandbox_id = await make(executor)
    busy = "(while :; do :; done) >/dev/null 2>&1 &"
    assert output(await executor.run(attempt_of(step(busy), sandbox_id=sandbox_id))) == ""
    # Servers that other tests started run below this process too.
    processes = [process for process, line in running_commands() if busy in line]
    assert processes

    def used() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in processes)

    await until_still(used)


async def test_a_second_reset_replaces_the_sandbox(executor: SandboxExecutor) -> None:
    first = await make(executor, reset(set_up="touch old"))
    second = await make(executor, reset(set_up="ls"))
    assert [state.sandbox_id for state in executor.sandboxes()] == [second]
    assert failure(await executor.run(attempt_of(step("ls"), sandbox_id=first))) == ("INFRA", "state_lost")
    assert output(await executor.run(attempt_of(step("ls"), sandbox_id=second))) == ""


async def test_a_step_without_its_sandbox_is_lost_state(executor: SandboxExecutor) -> None:
    assert failure(await executor.run(attempt_of(step("true"), sandbox_id="gone"))) == ("INFRA", "state_lost")


async def test_a_released_sandbox_is_gone(executor: SandboxExecutor) -> None:
    sandbox_id = await make(executor, reset(set_up="sleep 1000 >/dev/null 2>&1 &"))
    state = manager_service_pb2.SandboxState(job_id="job", trajectory_id="trajectory", sandbox_id="another")
    await executor.release_sandbox(state)
    assert len(executor.sandboxes()) == 1
    state.sandbox_id = sandbox_id
    await executor.release_sandbox(state)
    await executor.release_sandbox(state)
    assert executor.sandboxes() == []
    await until_sleepers_are([])


async def test_a_sandbox_that_dies_is_reported_and_dropped(executor: SandboxExecutor) -> None:
    told: list[tuple[str, str]] = []
    lost = anyio.Event()

    def report(state: manager_service_pb2.SandboxState, reason: str) -> None:
        told.append((state.trajectory_id, state.sandbox_id))
        assert reason
        lost.set()

    executor.on_sandbox_lost(report)
    sandbox_id = await make(executor)

    async with under_way(executor, attempt_of(step("touch started; sleep 1000"), sandbox_id=sandbox_id)) as results:
        await until_sleepers_are([["sleep", "1000"]])
        for process, line in running_commands():
            if any("/agent/__main__.py" in word for word in line) and "bwrap" not in line[0]:
                process.kill()
        await lost.wait()
    assert told == [("trajectory", sandbox_id)]
    assert failure(results[0]) == ("ENV", "state_lost"), "who runs inside may have ended it"
    assert executor.sandboxes() == []
    await until_sleepers_are([])


async def test_a_stopped_reset_leaves_no_sandbox(executor: SandboxExecutor) -> None:
    attempt = attempt_of(reset(set_up="sleep 1000"))
    async with under_way(executor, attempt) as results:
        await until_sleepers_are([["sleep", "1000"]])
        attempt.stop_requested.set()
    assert isinstance(results[0], Stopped)
    assert executor.sandboxes() == []
    early = attempt_of(reset())
    early.stop_requested.set()
    assert isinstance(await executor.run(early), Stopped | Completed)


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        (step("true", inline_file("../x", b"")), ("ENV", "bad_path")),
        (step("true", inline_file("link/x", b"")), ("ENV", "bad_path")),
        (
            action_pb2.ActionSpec(
                trajectory_id="trajectory",
                env_step=action_pb2.EnvStepInput(command=action_pb2.Command(argv=action_pb2.Argv(arguments=["nope"]))),
            ),
            ("ENV", "no_such_program"),
        ),
        (
            action_pb2.ActionSpec(
                trajectory_id="trajectory",
                env_step=action_pb2.EnvStepInput(command=action_pb2.Command(shell="true", working_directory="nope")),
            ),
            ("ENV", "bad_working_directory"),
        ),
        (
            action_pb2.ActionSpec(
                trajectory_id="trajectory",
                env_step=action_pb2.EnvStepInput(command=action_pb2.Command(shell="true", environment={"a b": "c"})),
            ),
            ("ENV", "bad_environment"),
        ),
        (
            action_pb2.ActionSpec(
                trajectory_id="trajectory", env_step=action_pb2.EnvStepInput(command=action_pb2.Command(shell="a\0b"))
            ),
            ("POLICY", "bad_command"),
        ),
    ],
)
async def test_only_the_text_of_a_command_is_the_models_fault(
    executor: SandboxExecutor, action: action_pb2.ActionSpec, expected: tuple[str, str]
) -> None:
    sandbox_id = await make(executor, reset(set_up="ln -s /tmp link"))
    spec = action_pb2.ActionSpec()
    spec.CopyFrom(action)
    assert failure(await executor.run(attempt_of(spec, sandbox_id=sandbox_id))) == expected
    assert output(await executor.run(attempt_of(step("echo alive"), sandbox_id=sandbox_id))) == "alive\n"


async def test_a_reset_with_a_bad_file_is_the_environments_fault(executor: SandboxExecutor) -> None:
    assert failure(await executor.run(attempt_of(reset(inline_file("..", b""))))) == ("ENV", "bad_path")
    assert executor.sandboxes() == []


async def test_out_of_memory_is_told_apart(executor: SandboxExecutor, settings: SandboxSettings) -> None:
    sandbox_id = await make(executor, memory=96)
    bomb = "python3 -c 'held = [bytearray(1 << 20) for _ in range(1000)]'"
    result = await executor.run(attempt_of(step(bomb), sandbox_id=sandbox_id))
    if tells(settings, "memory"):
        assert failure(result) == ("RESOURCE_LIMIT", "out_of_memory")
    else:
        # The engine's limit kills; that of a process makes its allocation fail.
        code, said = (137, b"Killed") if settings.isolation is Isolation.DOCKER else (1, b"MemoryError")
        assert isinstance(result, Completed)
        assert result.succeeded.env_step.exit_code == code
        assert said in result.succeeded.env_step.stderr.inline


async def test_a_suite_is_scored_by_its_report(executor: SandboxExecutor) -> None:
    script = f"echo '{JUNIT}' > {{report}}; echo units {{units}}; exit 1"
    sandbox_id = await make(executor, reset(set_up="touch own"))
    inside = suite(f"test -e own && {script}", in_sandbox=True)
    result = expect(
        Completed, await executor.run(attempt_of(inside, sandbox_id=sandbox_id, cores=[min(os.sched_getaffinity(0))]))
    )
    reward = result.succeeded.reward
    assert (reward.score, reward.passed, reward.total) == (0.75, 3, 4)
    assert reward.command.stdout.inline == b"units 1\n"
    outside = suite(f"test ! -e own && cat sent && {script}", inline_file("sent", b"sent "))
    result = expect(Completed, await executor.run(attempt_of(outside)))
    assert result.succeeded.reward.score == 0.75
    assert result.succeeded.reward.command.stdout.inline == b"sent units 1\n"
    assert len(executor.sandboxes()) == 1


async def test_a_suite_that_could_not_run_is_no_zero(executor: SandboxExecutor) -> None:
    result = await executor.run(attempt_of(suite("echo {report} > /dev/null; exit 4")))
    assert failure(result) == ("ENV", "no_report")
    assert isinstance(result, Broken)
    assert result.failed.partial.reward.command.exit_code == 4
    result = await executor.run(attempt_of(suite("echo nonsense > {report}")))
    assert failure(result) == ("POLICY", "bad_report")


async def test_other_actions_are_refused(executor: SandboxExecutor) -> None:
    model = action_pb2.ActionSpec(reward=action_pb2.RewardInput(model=action_pb2.ModelScoreInput(token_ids=[1])))
    assert failure(await executor.run(attempt_of(model))) == ("INFRA", "unsupported_action")


async def test_services_and_capabilities(executor: SandboxExecutor, settings: SandboxSettings) -> None:
    # A Docker engine's images are services as well.
    kinds = {service.name: list(service.kinds) for service in executor.services() if ":" not in service.name}
    assert kinds == {
        "sandbox": [action_pb2.ACTION_KIND_ENV_RESET, action_pb2.ACTION_KIND_ENV_STEP],
        "test-suite": [action_pb2.ACTION_KIND_REWARD],
    }
    assert executor.capabilities()["isolation"] == settings.isolation.value


async def test_a_manager_runs_once(executor: SandboxExecutor, settings: SandboxSettings) -> None:
    assert executor.sandboxes() == []
    with pytest.raises(ManagerRunningError, match="test-manager"):
        build_sandbox_executor(settings)


async def test_the_stateless_executor_scores_fresh_suites_only(settings: SandboxSettings) -> None:
    executor = build_test_suite_executor(settings)
    try:
        assert [service.name for service in executor.services()] == ["test-suite"]
        assert (await completed(executor, suite("true"))).reward.score == 1.0
        for action in (suite("true", in_sandbox=True), reset(), step("true")):
            assert failure(await executor.run(attempt_of(action))) == ("INFRA", "unsupported_action")
        assert executor.sandboxes() == []
    finally:
        await executor.close()
