"""Memory by need, with real sandboxes in control groups: more of them than fit with their whole demand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic

import anyio
import pytest
from callsheet.managers.clock import note_waits
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Stopped
from callsheet.managers.sandbox.cgroups import SandboxGroup, probe_layout
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.provisioning_settings import ProvisioningSettings
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.timing.waits import Cause
from structlog.testing import capture_logs

from tests.support.executor_runs import running_executor
from tests.support.expected import expect, present
from tests.support.other_user import TESTS_TIMEOUT_S, run_tests_as_other_user
from tests.support.sandbox_attempts import attempt_of, reset, step, suite
from tests.support.sandboxes import ANSWER_SECONDS, Variant, require_bubblewrap, settings_for
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

DEMAND_MIB = 64
# A command that has nearly its whole demand for a moment: 4 MiB less for the interpreter, 5 for the agent.
TOUCH = "python3 -c 'import time; held = bytearray({mib} << 20); time.sleep({s})'"
TOUCH_NEARLY_ALL = TOUCH.format(mib=46, s=0.2)


@pytest.fixture
def settings(tmp_path: Path) -> SandboxSettings:
    require_bubblewrap()
    layout = probe_layout()
    if layout is None or "memory" not in layout.controllers:
        pytest.skip("no control groups with a memory controller can be made here")
    return settings_for(Variant(Isolation.BUBBLEWRAP, groups=True), tmp_path)


@asynccontextmanager
async def running(
    settings: SandboxSettings, node_mib: int, *, by_need: bool = True, warm_mib: int = 0
) -> AsyncIterator[SandboxExecutor]:
    supply = ProvisioningSettings(node_memory_mib=node_mib, memory_by_need=by_need, warm_memory_mib=warm_mib)
    async with running_executor(replace(settings, provisioning=supply)) as executor:
        with anyio.fail_after(ANSWER_SECONDS):
            yield executor


def asked(name: str, memory_mib: int = DEMAND_MIB, *, guaranteed: bool = False) -> Attempt:
    action = reset(trajectory=name)
    action.env_reset.guaranteed_memory = guaranteed
    return attempt_of(action, resources={"memory": memory_mib})


async def make(executor: SandboxExecutor, attempt: Attempt) -> str:
    return expect(Completed, await executor.run(attempt)).succeeded.env_reset.sandbox_id


def exit_code(result: AttemptResult) -> int:
    assert isinstance(result, Completed), result
    return result.succeeded.env_step.exit_code


async def test_commands_that_all_touch_their_whole_demand_at_once_all_end(settings: SandboxSettings) -> None:
    """Twelve with 64 MiB each on 320 MiB, where four would fit for their lives; none is killed."""
    most, results, waited = 0, [], 0.0
    async with running(settings, 5 * DEMAND_MIB) as executor:
        ids = {str(number): await make(executor, asked(str(number))) for number in range(12)}

        async def one(name: str) -> None:
            nonlocal most, waited
            attempt = attempt_of(step(TOUCH_NEARLY_ALL, trajectory=name), sandbox_id=ids[name])
            note_waits(attempt.waits)
            results.append(await executor.run(attempt))
            most = max(most, executor.memory.ledger.booked_mib)
            waited = max(waited, attempt.waits.stood.get(Cause.MEMORY, 0.0))
            assert Cause.MEMORY not in attempt.waits.seconds

        async with anyio.create_task_group() as tasks:
            for name in ids:
                tasks.start_soon(one, name)
        assert len(executor.sandboxes()) == 12
    assert [exit_code(result) for result in results] == [0] * 12
    assert 0 < most <= 5 * DEMAND_MIB
    assert waited > 0


async def test_what_an_idle_sandbox_holds_is_told_background_processes_included(settings: SandboxSettings) -> None:
    async with running(settings, 10 * DEMAND_MIB) as executor:
        made = asked("t")
        sandbox_id = await make(executor, made)
        bare_mib = made.sandbox_held_mib
        assert 0 < bare_mib < 20

        async def held_after(script: str) -> int:
            attempt = attempt_of(step(script, trajectory="t"), sandbox_id=sandbox_id)
            assert exit_code(await executor.run(attempt)) == 0
            assert executor.sandboxes()[0].held_mib == attempt.sandbox_held_mib
            return attempt.sandbox_held_mib

        assert 20 <= await held_after("head -c 20971520 /dev/zero > /tmp/file") - bare_mib < 30
        assert await held_after("rm /tmp/file") < bare_mib + 10
        assert await held_after(TOUCH_NEARLY_ALL) < bare_mib + 10, "it has ended"
        held = 'held = bytearray(20 << 20); open("/tmp/held", "w"); time.sleep(60)'
        background = f"python3 -c 'import time; {held}' > /dev/null 2>&1 & until [ -e /tmp/held ]; do :; done"
        assert 20 <= await held_after(background) - bare_mib < 40
        rewarded = attempt_of(suite("exit 0"), sandbox_id=sandbox_id)
        rewarded.action.trajectory_id = "t"
        await executor.run(rewarded)
        assert rewarded.sandbox_held_mib >= bare_mib + 20, "that of the trajectory, and not of the copy"


_PIN = """
import ctypes, mmap, os, sys
path, *entries = sys.argv[1:]
for entry in entries:
    with open(entry, "w") as file:
        file.write("0")
with open(path, "w+b") as file:
    file.write(bytes(SIZE))
    os.fsync(file.fileno())
    memory = mmap.mmap(file.fileno(), SIZE)
start = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
for call in (lambda: 0, lambda: ctypes.CDLL(None).mlock(start, ctypes.c_size_t(SIZE))):
    print(call(), flush=True)
    sys.stdin.readline()
"""


def test_a_locked_file_is_held(settings: SandboxSettings, tmp_path: Path) -> None:
    """Of a process with a larger limit than commands have; whatever is on a disk and not locked can be taken back."""
    layout, size_mib = probe_layout(), 4
    assert layout is not None
    group = SandboxGroup.make(layout, f"pinned-{os.getpid()}", DEMAND_MIB, 16)
    try:
        group.set_cores(os.sched_getaffinity(0))
        program = [sys.executable, "-c", _PIN.replace("SIZE", str(size_mib << 20)), str(tmp_path / "file")]
        with subprocess.Popen(
            [*program, *map(str, group.entries)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            held = []
            for _ in range(2):
                assert process.stdout.readline() == "0\n"
                held.append(group.held_mib(empty=True) or 0)
                process.stdin.write("\n")
                process.stdin.flush()
        assert size_mib <= held[1] - held[0] <= size_mib + 1
    finally:
        group.remove()


async def test_rewards_in_copies_wait_for_their_whole_demand_and_all_end(settings: SandboxSettings) -> None:
    most = 0
    async with running(settings, 5 * DEMAND_MIB) as executor:
        ids = {str(number): await make(executor, asked(str(number))) for number in range(6)}
        results: list[AttemptResult] = []

        async def one(name: str) -> None:
            nonlocal most
            action = suite(f"{TOUCH_NEARLY_ALL} && exit 0")
            action.trajectory_id = name
            results.append(await executor.run(attempt_of(action, sandbox_id=ids[name])))
            most = max(most, executor.memory.ledger.booked_mib)

        async with anyio.create_task_group() as tasks:
            for name in ids:
                tasks.start_soon(one, name)
    assert all(isinstance(result, Completed) for result in results)
    assert most <= 5 * DEMAND_MIB


async def test_a_wait_costs_no_execution_time_and_ends_with_a_stop_or_its_sandbox(settings: SandboxSettings) -> None:
    async with running(settings, 2 * DEMAND_MIB) as executor:
        ids = {name: await make(executor, asked(name)) for name in ("first", "stopped", "released")}
        results: dict[str, AttemptResult] = {}
        attempts = {
            name: attempt_of(step(TOUCH.format(mib=1, s=60), trajectory=name), sandbox_id=ids[name]) for name in ids
        }

        async def one(name: str) -> None:
            note_waits(attempts[name].waits)
            results[name] = await executor.run(attempts[name])

        async with anyio.create_task_group() as tasks:
            for number, name in enumerate(attempts):
                tasks.start_soon(one, name)
                await until(lambda number=number: len(executor.memory.ledger.line) == number)  # type: ignore[misc]
            clock = present(attempts["stopped"].execution_clock)
            counted = clock(monotonic())
            assert clock(monotonic() + 1e6) == counted
            attempts["stopped"].stop_requested.set()
            await until(partial(results.__contains__, "stopped"))
            await executor.release_sandbox(
                next(each for each in executor.sandboxes() if each.trajectory_id == "released")
            )
            await until(partial(results.__contains__, "released"))
            assert len(executor.memory.ledger.line) == 0
            attempts["first"].stop_requested.set()
        assert isinstance(results["first"], Stopped)
        assert isinstance(results["stopped"], Stopped)
        assert isinstance(results["released"], Broken)
        assert results["released"].failed.reason == "state_lost"
        assert attempts["stopped"].waits.stood.keys() == {Cause.MEMORY}


async def test_a_reset_that_fits_alone_waits_and_one_that_never_fits_is_refused(settings: SandboxSettings) -> None:
    async with running(settings, 3 * DEMAND_MIB) as executor:
        await make(executor, asked("small"))
        refused = expect(Broken, await executor.run(asked("never", 4 * DEMAND_MIB)))
        assert refused.failed.reason == "memory_exhausted"
        large = asked("large", 3 * DEMAND_MIB)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(executor.run, large)
            await until(lambda: len(executor.memory.ledger.line) == 1)
            await executor.release_sandbox(executor.sandboxes()[0])
        assert [each.trajectory_id for each in executor.sandboxes()] == ["large"]


async def test_without_groups_memory_is_booked_for_life_and_one_line_says_why(tmp_path: Path) -> None:
    require_bubblewrap()
    settings = settings_for(Variant(Isolation.BUBBLEWRAP, groups=False), tmp_path)
    with capture_logs() as lines:
        async with running(settings, 10 * DEMAND_MIB) as executor:
            made = asked("t")
            await make(executor, made)
            assert made.sandbox_held_mib == 0
            assert executor.capabilities()["memory_admission"] == "as the scheduler books it"
    told = [line for line in lines if line["event"] == "memory_booked_for_life"]
    assert [line["reason"] for line in told] == ["sandboxes have no groups for memory_hard and freeze"]


@pytest.mark.timeout(TESTS_TIMEOUT_S)
def test_it_is_so_for_an_unprivileged_user() -> None:
    run_tests_as_other_user("without_groups", "tests/integration/test_memory_by_need.py")


async def test_ready_sandboxes_are_counted_by_what_they_hold_and_given_up_first(settings: SandboxSettings) -> None:
    async with (
        running(settings, 10 * DEMAND_MIB, warm_mib=2 * DEMAND_MIB) as executor,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(executor.serve)
        async with anyio.create_task_group() as siblings:  # at once, as single ones are soon forgotten
            for number in range(3):
                siblings.start_soon(make, executor, asked(str(number)))
        pool = executor.provisioner.pool
        await until(lambda: pool.ready == 2 and executor.memory.ledger.booked_mib < 2 * DEMAND_MIB)
        assert executor.memory.ledger.booked_mib > 0
        await make(executor, asked("large", 10 * DEMAND_MIB - executor.memory.ledger.booked_mib + 5))
        assert pool.ready < 2, "they are no reason to wait"
        tasks.cancel_scope.cancel()
