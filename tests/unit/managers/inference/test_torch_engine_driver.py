from __future__ import annotations

import os

import anyio
import pytest
import torch
from callsheet.managers.inference.driver import EngineFailedError, EngineLoad, FinishReason, UpdateMode, WeightUpdate
from callsheet.managers.inference.torch_engine.driver import TorchEngineDriver
from callsheet.managers.inference.torch_engine.engine import TorchEngine
from callsheet.managers.inference.torch_engine.runner import ModelRunner
from callsheet.managers.inference.torch_engine.weight_sources import WeightSources
from callsheet.managers.inference.weights import DiskWeights

from tests.support.torch_models import SMALL, prompt, request, save_weights, small_model
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


def engine(kv_cache_tokens: int = 512, **options: object) -> TorchEngineDriver:
    runner = ModelRunner(small_model())
    return TorchEngineDriver(
        TorchEngine(runner, prefix_cache_tokens=0),
        WeightSources(runner),
        kv_cache_tokens=kv_cache_tokens,
        **options,  # type: ignore[arg-type]
    )


def break_model(driver: TorchEngineDriver) -> None:
    """Leaves the model with a head that fits it no more: the next turn raises inside torch."""
    runner = driver._engine._runner
    assert isinstance(runner, ModelRunner)
    runner.model.head = torch.nn.Linear(3, 4)


async def test_the_thread_runs_on_its_cores_and_leaves_those_of_others() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    driver = engine(cores=(core,), threads=1)
    inside = await driver._in_thread(lambda: (os.sched_getaffinity(0), torch.get_num_threads()))
    assert inside == ({core}, 1)
    assert os.sched_getaffinity(0) == before
    await driver.close()


async def test_a_core_that_is_not_there_kills_the_engine_and_says_why() -> None:
    driver = engine(cores=(4095,))
    with pytest.raises(EngineFailedError, match="OSError"):
        await driver.generate(request("a", prompt(4)))
    assert not driver.health.alive
    assert "OSError" in driver.health.reason
    assert "OSError" in await driver.wait_failed()
    await driver.close()


async def test_requests_begin_first_come_as_far_as_there_is_room() -> None:
    driver = engine()
    order: list[str] = []
    waits: dict[str, float] = {}

    async def generate(name: str, length: int) -> None:
        result = await driver.generate(request(name, prompt(length), max_new_tokens=20))
        order.append(name)
        waits[name] = result.waited_s

    async with anyio.create_task_group() as tasks:
        for name, length in (("a", 200), ("b", 220), ("c", 200), ("d", 10)):
            tasks.start_soon(generate, name, length)
        await until(lambda: driver.load.running == 2)
        load = driver.load
        # "d" would fit, but "c" came before.
        assert (load.waiting, load.kv_tokens_used, load.kv_tokens_total) == (2, 460, 512)
    assert set(order[:2]) == {"a", "b"}
    assert min(waits[name] for name in "cd") > max(waits[name] for name in "ab")
    assert driver.load == EngineLoad(0, 0, 0, 512)
    await driver.close()


async def test_the_requests_that_have_begun_have_a_bound() -> None:
    driver = engine(max_running=3)
    most = 0

    async def generate(name: str) -> None:
        nonlocal most
        await driver.generate(request(name, prompt(4), max_new_tokens=5))
        most = max(most, driver.load.running)

    async with anyio.create_task_group() as tasks:
        for name in "abcdefg":
            tasks.start_soon(generate, name)
        await until(lambda: driver.load.running == 3)
        assert driver.load.waiting == 4
    assert most == 3
    await driver.close()


async def test_who_is_cancelled_or_aborted_while_waiting_leaves_no_trace() -> None:
    driver = engine(max_running=1)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(driver.generate, request("a", prompt(4), max_new_tokens=200))
        await until(lambda: driver.load.running == 1)
        with anyio.move_on_after(0) as cancelled:
            await driver.generate(request("b", prompt(4)))
        assert cancelled.cancelled_caught
        async with anyio.create_task_group() as aborting:

            async def aborted() -> None:
                result = await driver.generate(request("c", prompt(4)))
                assert (result.token_ids, result.version_spans) == ((), ())
                assert result.finish_reason is FinishReason.ABORT

            aborting.start_soon(aborted)
            await until(lambda: driver.load.waiting == 1)
            await driver.abort("c")
        await driver.abort("a")
    assert driver.load == EngineLoad(0, 0, 0, 512)
    await driver.close()


async def test_room_for_less_than_the_context_is_refused() -> None:
    with pytest.raises(ValueError, match=r"kv_cache_tokens is 128.*context_length \(256\)"):
        engine(kv_cache_tokens=128)


async def test_a_failure_of_the_engine_reaches_everyone(tmp_path_factory: pytest.TempPathFactory) -> None:
    driver = engine(max_running=2)
    directory = tmp_path_factory.mktemp("weights")
    save_weights(small_model(1), SMALL, directory)
    failures: list[EngineFailedError] = []

    async def fails(name: str) -> None:
        with pytest.raises(EngineFailedError, match="RuntimeError") as caught:
            await driver.generate(request(name, prompt(8), max_new_tokens=200))
        failures.append(caught.value)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for name in "abc":
                tasks.start_soon(fails, name)
            await until(lambda: driver.load.running == 2)
            break_model(driver)
    assert len(failures) == 3
    assert not driver.health.alive
    with pytest.raises(EngineFailedError):
        await driver.update_weights(WeightUpdate(DiskWeights(str(directory)), 1, UpdateMode.KEEP))
    assert "RuntimeError" in await driver.wait_failed()
    await driver.abort("a")
    await driver.close()


async def test_a_failure_wakes_who_watches_for_it_and_a_close_does_not() -> None:
    failing, closing = engine(), engine()
    reasons: list[str] = []

    async def watch(driver: TorchEngineDriver) -> None:
        reasons.append(await driver.wait_failed())

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for driver in (failing, closing):
                tasks.start_soon(watch, driver)
            await anyio.wait_all_tasks_blocked()
            await closing.close()
            break_model(failing)
            with pytest.raises(EngineFailedError):
                await failing.generate(request("a", prompt(8)))
            tasks.cancel_scope.cancel()
    assert len(reasons) == 1
    assert "RuntimeError" in reasons[0]
