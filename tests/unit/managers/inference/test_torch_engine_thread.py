from __future__ import annotations

import os
from typing import cast

import anyio
import pytest
import torch
from callsheet.managers.inference.driver import EngineFailedError, UpdateMode, WeightUpdate
from callsheet.managers.inference.torch_engine.driver import TorchEngineDriver
from callsheet.managers.inference.torch_engine.runner import ModelRunner
from callsheet.managers.inference.weights import DiskWeights

from tests.support.torch_models import SMALL, prompt, request, save_weights, small_model

pytestmark = pytest.mark.anyio


def engine(**options: object) -> TorchEngineDriver:
    return TorchEngineDriver(ModelRunner(small_model(), kv_cache_tokens=512), **options)  # type: ignore[arg-type]


async def test_the_thread_runs_on_its_cores_and_leaves_those_of_others() -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    driver = engine(cores=(core,), threads=1)
    inside = driver._thread.call(lambda: (os.sched_getaffinity(0), torch.get_num_threads()))
    assert inside.result(30) == ({core}, 1)
    assert os.sched_getaffinity(0) == before
    await driver.close()


async def test_a_core_that_is_not_there_kills_the_engine_and_says_why() -> None:
    driver = engine(cores=(4095,))
    driver._thread._thread.join(30)
    assert not driver.health.alive
    assert "OSError" in driver.health.reason
    with pytest.raises(EngineFailedError, match="OSError"):
        await driver.generate(request("a", prompt(4)))


async def test_a_failure_of_the_engine_reaches_everyone(tmp_path_factory: pytest.TempPathFactory) -> None:
    driver = engine()
    directory = tmp_path_factory.mktemp("weights")
    save_weights(small_model(1), SMALL, directory)
    failures: list[EngineFailedError] = []

    async def fails(name: str) -> None:
        with pytest.raises(EngineFailedError, match="RuntimeError") as caught:
            await driver.generate(request(name, prompt(8), max_new_tokens=200))
        failures.append(caught.value)

    def break_cache() -> None:
        # The model and its cache no longer fit together: the next step raises inside torch.
        cast(ModelRunner, driver._runner)._cache = torch.zeros(4, 3, 513, 32)

    driver._batcher.admits = False
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for name in "abc":
                tasks.start_soon(fails, name)
            await anyio.wait_all_tasks_blocked()
            driver._thread.post(break_cache)
            driver._thread.post(lambda: setattr(driver._batcher, "admits", True))
    assert len(failures) == 3
    assert not driver.health.alive
    with pytest.raises(EngineFailedError):
        await driver.update_weights(WeightUpdate(DiskWeights(str(directory)), 1, UpdateMode.KEEP))
    assert "RuntimeError" in await driver.wait_failed()
    await driver.abort("a")
    await driver.close()


async def test_a_failing_call_does_not_kill_the_engine() -> None:
    driver = engine()
    with pytest.raises(ZeroDivisionError):
        driver._thread.call(lambda: 1 // 0).result(30)
    assert driver.health.alive
    assert len((await driver.generate(request("a", prompt(4)))).token_ids) == 16
    await driver.close()


async def test_hundreds_of_requests_at_once() -> None:
    driver = engine()
    results = {}

    async def generate(index: int) -> None:
        results[index] = await driver.generate(request(f"{index:04}", prompt(10, index), max_new_tokens=4, seed=index))

    async with anyio.create_task_group() as tasks:
        for index in range(300):
            tasks.start_soon(generate, index)
    assert len(results) == 300
    assert all(len(result.token_ids) == 4 for result in results.values())
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
            cast(ModelRunner, failing._runner)._cache = torch.zeros(4, 3, 513, 32)
            with pytest.raises(EngineFailedError):
                await failing.generate(request("a", prompt(8)))
            tasks.cancel_scope.cancel()
    assert len(reasons) == 1
    assert "RuntimeError" in reasons[0]
