"""Set-ups that are run once, sandboxes that are ready, and what a manager refuses: with real sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Stopped
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import action_pb2, outcome_pb2
from callsheet.v1.set_ups import set_up_name

from tests.support.executor_runs import failure, printed, running_executor
from tests.support.expected import expect
from tests.support.sandbox_attempts import attempt_of, inline_file, reset, step
from tests.support.sandboxes import (
    ANSWER_SECONDS,
    Variant,
    settings_for,
    until_sleepers_are,
    variants,
    wake_sleepers,
)
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

STORM = 60


@pytest.fixture(params=variants(*Isolation, others_by_night=True), ids=str)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SandboxSettings:
    variant: Variant = request.param
    return settings_for(variant, tmp_path)


@asynccontextmanager
async def running(settings: SandboxSettings, **provisioning: int) -> AsyncIterator[SandboxExecutor]:
    changed = replace(settings, provisioning=replace(ProvisioningSettings(), **provisioning))  # type: ignore[arg-type]
    async with running_executor(changed) as executor:
        yield executor


def attempt_at(set_up: str, trajectory: str, memory: int = 64, *, repeat: bool = False) -> Attempt:
    action = reset(inline_file("given", b"given\n"), set_up=set_up, trajectory=trajectory)
    action.env_reset.repeat_set_up = repeat
    action.env_reset.disk_mib = 8
    return attempt_of(action, resources={"memory": memory})


async def make(executor: SandboxExecutor, attempt: Attempt) -> outcome_pb2.EnvResetResult:
    return expect(Completed, await executor.run(attempt)).succeeded.env_reset


async def storm(executor: SandboxExecutor, set_up: str, count: int, memory: int = 64) -> list[AttemptResult]:
    """Resets as many trajectories at once; returns the results in the order of the trajectories' numbers."""
    results: dict[int, AttemptResult] = {}

    async def one(number: int) -> None:
        results[number] = await executor.run(attempt_at(set_up, str(number), memory))

    async with anyio.create_task_group() as tasks:
        for number in range(count):
            tasks.start_soon(one, number)
    return [results[number] for number in range(count)]


def kept_set_ups(executor: SandboxExecutor) -> dict[str, float]:
    [sandboxes] = [service for service in executor.services() if service.name == "sandbox"]
    return dict(sandboxes.kept_set_ups)


SET_UP = (
    "cat given; mkdir -p deep/er; ln -s /nowhere deep/link; od -An -N8 -tx8 /dev/urandom > drawn; chmod 500 deep/er"
)


@pytest.mark.timeout(240)
async def test_a_storm_of_resets_sets_up_once(executor: SandboxExecutor) -> None:
    results = await storm(executor, SET_UP, STORM)
    made = [result.succeeded.env_reset for result in results if isinstance(result, Completed)]
    assert len(made) == STORM
    assert [one.set_up_reused for one in made].count(False) == 1
    assert {one.set_up.stdout.inline for one in made} == {b"given\n"}
    assert len({one.sandbox_id for one in made}) == STORM
    drawn = [await printed(executor, one.sandbox_id, "cat drawn", str(number)) for number, one in enumerate(made[:10])]
    assert len(set(drawn)) == 1
    seen = await printed(
        executor, made[-1].sandbox_id, "cat given; stat -c %a deep/er; readlink deep/link", str(STORM - 1)
    )
    assert seen == "given\n500\n/nowhere\n"


async def test_what_one_changes_the_next_does_not_see(executor: SandboxExecutor) -> None:
    for trajectory in ("one", "two", "three"):
        made = await make(executor, attempt_at("echo a > kept; echo b > also", trajectory))
        script = "rm also; echo c >> kept; ls; cat kept"
        assert await printed(executor, made.sandbox_id, script, trajectory) == "given\nkept\na\nc\n"


async def test_temporary_files_of_a_set_up_are_kept(executor: SandboxExecutor) -> None:
    for trajectory in ("one", "two"):
        made = await make(executor, attempt_at("echo n > ~/note; echo t > $TMPDIR/t", trajectory))
        assert await printed(executor, made.sandbox_id, "cat ~/note $TMPDIR/t", trajectory) == "n\nt\n"


async def test_set_ups_survive_a_restart_of_the_manager(settings: SandboxSettings) -> None:
    for reused in (False, True):
        async with running(settings) as executor:
            made = await make(executor, attempt_at("date +%N > drawn; echo said", "one"))
            assert (made.set_up_reused, made.set_up.stdout.inline) == (reused, b"said\n")


async def test_a_set_up_is_repeated_where_that_is_asked_for(settings: SandboxSettings) -> None:
    async with running(settings) as executor:
        for _ in range(2):
            assert not (await make(executor, attempt_at("true", "one", repeat=True))).set_up_reused
    async with running(settings, keep_set_ups=False) as executor:
        for _ in range(2):
            assert not (await make(executor, attempt_at("true", "one"))).set_up_reused
    assert list((settings.data_directory / "layers" / settings.manager_id).iterdir()) == []


async def test_a_set_up_that_leaves_processes_is_run_each_time(executor: SandboxExecutor) -> None:
    started = "(while :; do sleep 0.01; echo tick >> ticks; done) >/dev/null 2>&1 & until test -s ticks; do :; done"
    results = await storm(executor, started, 4)
    for number, result in enumerate(results):
        assert isinstance(result, Completed), result
        made = result.succeeded.env_reset
        assert not made.set_up_reused
        grows = "a=$(wc -l < ticks); until test $(wc -l < ticks) -gt $a; do :; done; echo grew"
        assert await printed(executor, made.sandbox_id, grows, str(number)) == "grew\n"


async def test_what_is_too_large_to_keep_is_run_each_time(settings: SandboxSettings) -> None:
    async with running(settings, largest_set_up_mib=1) as executor:
        for trajectory in ("one", "two"):
            made = await make(executor, attempt_at("head -c 3000000 /dev/urandom > big", trajectory))
            assert not made.set_up_reused
            assert await printed(executor, made.sandbox_id, "wc -c < big", trajectory) == "3000000\n"


async def test_a_failing_set_up_fails_once_for_all_that_wait(executor: SandboxExecutor, tmp_path: Path) -> None:
    results = await storm(executor, "echo why >&2; sleep 0.3; exit 3", 50)
    assert {failure(result) for result in results} == {("ENV", "set_up_failed")}
    wall = set()
    for result in results:
        assert isinstance(result, Broken)
        set_up = result.failed.partial.env_reset.set_up
        assert (set_up.exit_code, set_up.stderr.inline) == (3, b"why\n")
        wall.add(set_up.wall_s)
    # Those that came while it ran share its result; with 50 at once nobody is later than that.
    assert len(wall) == 1
    assert executor.sandboxes() == []


async def test_when_the_first_is_stopped_the_next_sets_up(executor: SandboxExecutor) -> None:
    nap = ["sleep", "1000.0625"]
    slow = f"echo began; {' '.join(nap)}; echo ended"
    first, results = attempt_at(slow, "first"), list[AttemptResult]()
    is_over = anyio.Event()

    async def one(attempt: Attempt) -> None:
        results.append(await executor.run(attempt))
        is_over.set()

    with anyio.fail_after(ANSWER_SECONDS):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, first)
            await until_sleepers_are([nap])
            for number in range(3):
                tasks.start_soon(one, attempt_at(slow, str(number)))
            first.stop_requested.set()
            await is_over.wait()
            # The second run's is ended from outside, so that its set-up goes on.
            await until_sleepers_are([nap])
            wake_sleepers()
    stopped = [result for result in results if isinstance(result, Stopped)]
    made = [result.succeeded.env_reset for result in results if isinstance(result, Completed)]
    assert (len(stopped), len(made)) == (1, 3)
    assert [one.set_up_reused for one in made].count(False) == 1
    assert {one.set_up.stdout.inline for one in made} == {b"began\nended\n"}


async def two_ready(executor: SandboxExecutor) -> set[str]:
    """Waits until two sandboxes or more are ready; returns the ids."""
    pool = executor.provisioner.pool
    await until(lambda: pool.ready >= 2, every_s=0.01)
    return {sandbox.spec.sandbox_id for shelf in pool._shelves.values() for sandbox in shelf.sandboxes}


async def test_ready_sandboxes_are_taken_and_made_again(settings: SandboxSettings) -> None:
    async with running(settings, warm_memory_mib=64 * 4) as executor, anyio.create_task_group() as tasks:
        tasks.start_soon(executor.serve)
        await storm(executor, "echo ready > file", 3)
        ready = await two_ready(executor)
        made = await make(executor, attempt_at("echo ready > file", "next"))
        assert await printed(executor, made.sandbox_id, "cat given file", "next") == "given\nready\n"
        assert made.sandbox_id in ready
        cores = sorted(settings.cores)[:1]
        attempt = attempt_of(step("nproc", trajectory="next"), sandbox_id=made.sandbox_id, cores=cores)
        assert expect(Completed, await executor.run(attempt)).succeeded.env_step.stdout.inline == b"1\n"
        tasks.cancel_scope.cancel()


async def test_a_reset_with_files_takes_a_ready_sandbox(settings: SandboxSettings) -> None:
    def asked(trajectory: str) -> Attempt:
        return attempt_of(reset(inline_file("given", b"given\n"), trajectory=trajectory), resources={"memory": 64})

    async with running(settings, warm_memory_mib=64 * 4) as executor, anyio.create_task_group() as tasks:
        tasks.start_soon(executor.serve)
        for number in range(2):
            await make(executor, asked(str(number)))
        ready = await two_ready(executor)
        made = await make(executor, asked("next"))
        assert made.sandbox_id in ready
        assert await printed(executor, made.sandbox_id, "ls", "next") == "given\n"
        tasks.cancel_scope.cancel()


async def test_ready_sandboxes_make_room_for_those_that_are_asked_for(settings: SandboxSettings) -> None:
    async with (
        running(settings, warm_memory_mib=128, memory_limit_mib=64 * 5, memory_by_need=False) as executor,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(executor.serve)
        for number in range(3):
            await executor.run(attempt_of(reset(trajectory=str(number)), resources={"memory": 64}))
        await two_ready(executor)
        await make(executor, attempt_of(reset(trajectory="large"), resources={"memory": 128}))
        result = await executor.run(attempt_of(reset(trajectory="more"), resources={"memory": 64}))
        assert failure(result) == ("INFRA", "memory_exhausted")
        tasks.cancel_scope.cancel()


async def test_memory_is_not_given_twice(settings: SandboxSettings) -> None:
    async with running(settings, memory_limit_mib=200, memory_by_need=False) as executor:
        assert executor.capabilities()["memory_admission"] == "at most 200 MiB held by all sandboxes"
        results = await storm(executor, "true", 5)
        made = [result for result in results if isinstance(result, Completed)]
        assert len(made) == 3
        refused = [result for result in results if isinstance(result, Broken)]
        assert {failure(result) for result in refused} == {("INFRA", "memory_exhausted")}
        assert "200 MiB" in refused[0].failed.message
        await executor.release_sandbox(executor.sandboxes()[0])
        await make(executor, attempt_at("true", "later"))
        test_suite = action_pb2.ActionSpec(trajectory_id="t")
        test_suite.reward.test_suite.command.shell = "exit 0"
        assert failure(await executor.run(attempt_of(test_suite))) == ("INFRA", "memory_exhausted")


async def test_too_many_at_once_are_refused(settings: SandboxSettings) -> None:
    async with running(settings, most_creations=5) as executor:
        results = [*await storm(executor, "true", 1), *await storm(executor, "true", 40)]
        refused = [failure(result) for result in results if isinstance(result, Broken)]
        assert set(refused) == {("INFRA", "creations_overloaded")}
        assert len(results) - len(refused) >= 5


@pytest.mark.parametrize("settings", variants(Isolation.BUBBLEWRAP), ids=str, indirect=True)
async def test_failures_to_make_a_sandbox_slow_the_next_tries(settings: SandboxSettings, tmp_path: Path) -> None:
    program = tmp_path / "bwrap"
    program.write_text("no program\n")
    program.chmod(0o755)
    reasons: list[str] = []
    async with running(replace(settings, bwrap=program)) as executor:
        began = anyio.current_time()

        async def insist(number: int) -> None:
            for _ in range(4):
                result = await executor.run(attempt_at("true", str(number), repeat=True))
                reasons.append(failure(result)[1])

        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(insist, number)
        took_s = anyio.current_time() - began
    assert set(reasons) == {"sandbox_not_created", "creations_failing"}
    # Only the first of each task can have tried at once. Three times or more one tried for all after a pause, and these
    # pauses are at least 0.05, 0.1 and 0.2 s.
    assert reasons.count("sandbox_not_created") <= 8
    assert took_s > 0.34


async def test_what_is_kept_is_told_until_it_is_given_up(settings: SandboxSettings) -> None:
    noise = "head -c 600000 /dev/urandom > noise"
    told: list[dict[str, float]] = []
    async with running(settings, layer_cache_mib=1) as executor:
        executor.on_service_change(lambda: told.append(kept_set_ups(executor)))
        first = attempt_at(noise, "one")
        name = set_up_name(first.action.env_reset)
        await make(executor, first)
        assert told[-1].keys() == {name}
        assert told[-1][name] > 0
        count = len(told)
        await make(executor, attempt_at(noise, "two"))
        await make(executor, attempt_at("true", "three", repeat=True))
        assert len(told) == count, "nothing came or went"
    async with running(settings, layer_cache_mib=1) as executor:
        assert kept_set_ups(executor) == told[-1], "an earlier process kept it"
        await make(executor, attempt_at(f"{noise}; true", "one"))
        assert name not in kept_set_ups(executor)
        assert len(kept_set_ups(executor)) == 1
