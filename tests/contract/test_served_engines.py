"""Drivers of servers when these die, come back, fill up, or are used by others; beside the suite of all drivers."""

from __future__ import annotations

import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.lowlevel
import anyio.to_thread
import pytest
import torch
from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineDriver,
    EngineError,
    EngineFailedError,
    FinishReason,
    Generation,
    RequestRefusedError,
    UnsupportedError,
    UpdateMode,
    VersionSpan,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.executor import build_inference_manager
from callsheet.managers.inference.http_engine.client import EngineHttp
from callsheet.managers.inference.http_engine.driver import HttpEngineDriver
from callsheet.managers.inference.openai_engine.server import read_server as openai_server
from callsheet.managers.inference.openai_engine.settings import OpenAISettings
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.sglang_engine.driver import attach_sglang
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.inference.weights import (
    DiskWeights,
    FirstWeights,
    GroupWeights,
    TensorSpec,
    TensorWeights,
)
from callsheet.managers.settings import ManagerSettings
from callsheet.v1.manager_service_pb2 import NodeSpec
from safetensors.torch import save_file

from tests.support.contract_engine import Standing
from tests.support.contract_http import ContractServer, running
from tests.support.contract_model import VOCABULARY, expected_log_probs
from tests.support.contract_openai import ContractOpenAI
from tests.support.contract_sglang import ContractSGLang
from tests.support.contract_vllm import ContractVLLM
from tests.support.ports import free_port
from tests.support.served_subjects import contract_engine, contract_weights, openai_driver, sglang_driver, vllm_driver
from tests.support.torch_models import prompt, request
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
WAIT_S = 60
ENDLESS = 16_000


@dataclass(frozen=True, slots=True)
class Served:
    """A server and its driver."""

    server: ContractServer
    driver: HttpEngineDriver


@asynccontextmanager
async def served(
    server: ContractServer, connect: Callable[[ContractServer], Awaitable[HttpEngineDriver]]
) -> AsyncIterator[Served]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(server))
        driver = await connect(server)
        stack.push_async_callback(driver.close)
        yield Served(server, driver)


def sglang(place: Path, **options: object) -> ContractSGLang:
    return ContractSGLang(contract_engine(place), **options)  # type: ignore[arg-type]


def vllm(place: Path) -> ContractVLLM:
    return ContractVLLM(contract_engine(place, heeds_seeds=True, joint=False))


@pytest.fixture(params=["sglang", "vllm"])
async def both(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    """Either of the servers whose weights can be replaced."""
    connected = (
        served(sglang(tmp_path), sglang_driver) if request.param == "sglang" else served(vllm(tmp_path), vllm_driver)
    )
    async with connected as it:
        yield it


async def outcome(
    driver: EngineDriver, into: list[Generation | Exception], name: str = "a", **sampling: object
) -> None:
    try:
        into.append(await driver.generate(request(name, prompt(20), **{"max_new_tokens": ENDLESS, **sampling})))
    except EngineError as error:
        into.append(error)


async def test_a_server_that_dies_fails_its_requests_and_may_come_back(both: Served) -> None:
    told: list[tuple[bool, str]] = []
    driver, server = both.driver, both.server
    driver.on_change(lambda: told.append((driver.health.alive, driver.incarnation)))
    first, ends = driver.incarnation, list[Generation | Exception]()
    await driver.update_weights(WeightUpdate(DiskWeights(server.engine.model_path), 7, UpdateMode.ABORT))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, driver, ends)
        await until(lambda: bool(server.engine.running))
        await server.die()
        await driver.look()
    assert isinstance(ends[0], EngineFailedError)
    assert not driver.health.alive
    with pytest.raises(EngineFailedError):
        await driver.generate(request("b", prompt(4)))
    with pytest.raises(EngineFailedError):
        await driver.read_policy_version()
    with anyio.move_on_after(0.01) as waiting:
        await driver.wait_failed()
    assert waiting.cancelled_caught, "it is not dead for good"
    await server.start()
    await driver.look()
    assert driver.health.alive
    assert driver.incarnation != first
    assert driver.policy_version == await driver.read_policy_version() == 0
    assert [alive for alive, _ in told] == [False, True]
    assert (await driver.generate(request("c", prompt(4)))).finish_reason is FinishReason.LENGTH


async def test_a_pause_of_somebody_else_is_no_death(both: Served) -> None:
    both.server.engine.standing = Standing.KEEP
    await both.driver.look()
    assert both.driver.health.alive
    assert both.driver.health.paused
    both.server.engine.standing = Standing.NOT
    await both.driver.look()
    assert not both.driver.health.paused


async def test_weights_that_somebody_else_replaced_are_another_incarnation(both: Served) -> None:
    before, ends = both.driver.incarnation, list[Generation | Exception]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, both.driver, ends)
        await until(lambda: bool(both.server.engine.running))
        both.server.engine.label = "theirs"
        await both.driver.look()
    assert isinstance(ends[0], EngineFailedError)
    assert both.driver.incarnation != before


async def test_a_full_server_is_busy(both: Served) -> None:
    both.server.engine.most_waiting = 0
    with pytest.raises(EngineBusyError):
        await both.driver.generate(request("a", prompt(4)))
    both.server.engine.most_waiting = None
    path = "/generate" if isinstance(both.server, ContractSGLang) else "/inference/v1/generate"
    both.server.refuse[path] = 500
    with pytest.raises(EngineError, match="as the test wants it"):
        await both.driver.generate(request("a", prompt(4)))


async def test_what_would_kill_a_server_is_refused_before(both: Served) -> None:
    with pytest.raises(RequestRefusedError, match=str(VOCABULARY)) as refused:
        await both.driver.generate(request("a", (1, VOCABULARY)))
    assert refused.value.reason == "token_out_of_vocabulary"
    with pytest.raises(UnsupportedError):
        await both.driver.update_weights(WeightUpdate(TensorWeights(Path("x")), 1, UpdateMode.ABORT))
    assert both.server.alive


async def test_weights_from_a_group(both: Served, tmp_path: Path) -> None:
    tensors = (TensorSpec(str(contract_weights(tmp_path, 5)), "bfloat16", (3, 4)),)
    source = GroupWeights("127.0.0.1", free_port(), "trainer", 2, 1, "nccl", tensors)
    both.server.calls.clear()
    with pytest.raises(WeightUpdateError, match="nobody listened") as refused:
        await both.driver.update_weights(WeightUpdate(source, 4, UpdateMode.DRAIN, timeout_s=0.2))
    assert refused.value.intact
    assert not [path for path in both.server.calls if "init" in path], "a server would wait for good"
    for version in (4, 5):
        both.server.calls.clear()
        with socket.create_server((source.address, source.port)):
            await both.driver.update_weights(WeightUpdate(source, version, UpdateMode.DRAIN))
        joins = [path for path in both.server.calls if "init" in path]
        assert len(joins) == (1 if version == 4 else 0), "a server that is in the group does not join again"
        assert await both.driver.read_policy_version() == version
    after = await both.driver.generate(request("a", prompt(9)))
    assert after.version_spans == (VersionSpan(5, 0, 16),)
    assert after.log_probs == pytest.approx(expected_log_probs(5, prompt(9), after.token_ids))


async def test_a_half_applied_update_fails_what_was_kept_and_is_another_incarnation(both: Served) -> None:
    path = "/update_weights_from_disk" if isinstance(both.server, ContractSGLang) else "/update_weight_version"
    both.server.refuse[path] = 500
    before, ends = both.driver.incarnation, list[Generation | Exception]()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, both.driver, ends)
        await until(lambda: bool(both.server.engine.running))
        with pytest.raises(EngineError):
            await both.driver.update_weights(
                WeightUpdate(DiskWeights(both.server.engine.model_path), 1, UpdateMode.KEEP)
            )
    assert isinstance(ends[0], EngineFailedError)
    assert both.driver.incarnation != before
    assert not both.driver.health.paused


async def test_new_requests_do_not_wait_in_a_server_that_drains(both: Served, tmp_path: Path) -> None:
    ends, late = list[Generation | Exception](), list[Generation | Exception]()
    update = WeightUpdate(DiskWeights(str(contract_weights(tmp_path, 1))), 1, UpdateMode.DRAIN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, both.driver, ends)
        await until(lambda: bool(both.server.engine.running))
        tasks.start_soon(both.driver.update_weights, update)
        await until(lambda: both.driver._control.statistics().locked)
        tasks.start_soon(outcome, both.driver, late, "b")
        await until(lambda: both.driver.load.waiting == 1)
        assert len(both.server.engine.running) == 1
        await both.driver.abort("b")
        # An abort of what was sent waits for the end of the update, which waits for it.
        await both.driver._send_abort(both.driver._live.all[0])
    assert isinstance(late[0], Generation)
    assert (late[0].finish_reason, late[0].token_ids) == (FinishReason.ABORT, ())


async def test_an_abort_under_an_update_keeps_the_tokens(both: Served, tmp_path: Path) -> None:
    ends: list[Generation | Exception] = []
    update = WeightUpdate(DiskWeights(str(contract_weights(tmp_path, 1))), 1, UpdateMode.KEEP)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, both.driver, ends)
        await until(lambda: any(live.drawn for live in both.server.engine.running))
        tasks.start_soon(both.driver.update_weights, update)
        await until(lambda: both.server.engine.standing is not Standing.NOT)
        tasks.start_soon(both.driver.abort, "a")
    assert isinstance(ends[0], Generation)
    assert ends[0].finish_reason is FinishReason.ABORT
    assert ends[0].token_ids


async def test_an_older_sglang_keeps_no_requests_over_an_update_and_survives_it(tmp_path: Path) -> None:
    async with served(sglang(tmp_path, version="0.5.15"), sglang_driver) as it:
        abilities = it.driver.capabilities
        assert abilities.update_modes == {UpdateMode.DRAIN, UpdateMode.ABORT}
        assert not abilities.version_spans
        for version, mode in enumerate(sorted(abilities.update_modes, key=lambda each: each.value), 1):
            weights = DiskWeights(str(contract_weights(tmp_path, version)))
            await it.driver.update_weights(WeightUpdate(weights, version, mode))
            result = await it.driver.generate(request("a", prompt(9)))
            assert result.version_spans == (VersionSpan(version, 0, 16),)
        assert it.server.alive


async def test_half_of_a_pair_is_updated_by_aborts_alone_and_its_silence_ends(tmp_path: Path) -> None:
    settings = SGLangSettings(request_timeout=1)
    half = sglang(tmp_path, half="decode")
    async with served(half, lambda server: sglang_driver(server, settings)) as it, anyio.create_task_group() as tasks:
        driver = it.driver
        told: list[Generation | Exception] = []
        assert driver.capabilities.update_modes == {UpdateMode.DRAIN, UpdateMode.ABORT}
        weights = DiskWeights(str(contract_weights(tmp_path, 1)))
        with pytest.raises(UnsupportedError, match="keep"):
            await driver.update_weights(WeightUpdate(weights, 1, UpdateMode.KEEP))
        tasks.start_soon(outcome, driver, told)
        await until(lambda: bool(half.engine.running))
        await driver.update_weights(WeightUpdate(weights, 1, UpdateMode.ABORT))
        await until(lambda: bool(told))
        assert isinstance(told[0], Generation)
        assert told[0].finish_reason is FinishReason.ABORT
        for version in (1, 2):
            source = DiskWeights(str(contract_weights(tmp_path, version)))
            await driver.update_weights(WeightUpdate(source, version, UpdateMode.DRAIN, timeout_s=WAIT_S))
        assert (await driver.generate(request("b", prompt(20)))).version_spans == (VersionSpan(2, 0, 16),)
        half.partner = False
        with pytest.raises(EngineFailedError, match="within 1 s"):
            await driver.generate(request("c", prompt(20)))


async def test_a_slow_start_is_waited_for_and_a_missing_server_is_told(tmp_path: Path) -> None:
    server = sglang(tmp_path, starting_answers=1)
    async with running(server):
        driver = await anyio.to_thread.run_sync(attach_sglang, SGLangSettings(), server.url)
        assert driver.limits.sequences == 16
        assert driver.limits.context_length == ENDLESS + 384
        await driver.close()
    with pytest.raises(EngineFailedError, match="no engine was ready there"):
        await anyio.to_thread.run_sync(attach_sglang, SGLangSettings(attach_timeout=0.01), server.url)


async def test_a_server_is_shown_its_key(tmp_path: Path) -> None:
    server = sglang(tmp_path, api_key="secret")
    async with running(server):
        with pytest.raises(EngineError, match="401"):
            await anyio.to_thread.run_sync(attach_sglang, SGLangSettings(), server.url)
        driver = await anyio.to_thread.run_sync(attach_sglang, SGLangSettings(), server.url, "secret")
        assert (await driver.generate(request("a", prompt(4)))).finish_reason is FinishReason.LENGTH
        await driver.close()


async def test_a_server_without_token_ids_is_refused_plainly(tmp_path: Path) -> None:
    async with running(ContractOpenAI(contract_engine(tmp_path), token_ids=False)) as server:
        http = EngineHttp(server.url)
        with pytest.raises(UnsupportedError, match="takes no token ids"):
            await openai_server(http, OpenAISettings())
        with pytest.raises(EngineError, match="'other' is none of them"):
            await openai_server(http, OpenAISettings(served_name="other"))
        await http.close()


async def test_the_cached_tokens_of_a_plain_completion_server_are_told(tmp_path: Path) -> None:
    async with served(ContractOpenAI(contract_engine(tmp_path)), openai_driver) as it:
        told = [(await it.driver.generate(request(name, prompt(100)))).cached_tokens for name in "ab"]
    assert told == [0, 99]


async def test_a_server_without_log_probabilities_tells_none(tmp_path: Path) -> None:
    async with served(ContractOpenAI(contract_engine(tmp_path), log_probs=False), openai_driver) as it:
        assert not it.driver.capabilities.log_probs_modes
        result = await it.driver.generate(request("a", prompt(9)))
        assert (len(result.token_ids), result.log_probs) == (16, ())
        with pytest.raises(UnsupportedError):
            await it.driver.update_weights(WeightUpdate(DiskWeights("x"), 1, UpdateMode.ABORT))


async def test_a_version_is_no_update(tmp_path: Path) -> None:
    async with served(vllm(tmp_path), vllm_driver) as it:
        with pytest.raises(WeightUpdateError, match="version is -1"):
            await it.driver.update_weights(WeightUpdate(DiskWeights("x"), -1, UpdateMode.ABORT))


@pytest.mark.parametrize("engine", ["sglang", "vllm", "openai"])
async def test_a_manager_of_a_server(engine: str, tmp_path: Path) -> None:
    kinds: dict[str, Callable[[Path], ContractServer]] = {
        "sglang": sglang,
        "vllm": vllm,
        "openai": lambda place: ContractOpenAI(contract_engine(place)),
    }
    async with running(kinds[engine](tmp_path)) as server:
        settings = InferenceSettings(engine=engine, urls=(server.url,), load_at_first_use=True)
        # The server is served by this event loop, which looking for it must not block.
        manager = ManagerSettings("127.0.0.1:1", "m", NodeSpec(node_id="n"), handle_signals=False)
        executor = await anyio.to_thread.run_sync(build_inference_manager, settings, manager)
        [service] = executor.services()
        assert dict(service.reserved) == {}
        # One place in the server's batch is the canary's.
        assert service.slots == (settings.slots if engine == "openai" else server.engine.most_running - 1)
        assert executor.capabilities()["engine"] == engine
        assert int(executor.capabilities()["context_length"]) > 0
        told: list[bool] = []
        executor.on_service_change(lambda: told.append(executor.service_states()[0].no_room))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(executor.serve)
            await server.die()
            await until(lambda: told == [True])
            await server.start()
            await until(lambda: told == [True, False])
            if engine != "openai":
                server.engine.standing = Standing.KEEP
                await until(lambda: told == [True, False, True])
            tasks.cancel_scope.cancel()
        await executor.close()


async def test_what_others_have_is_told_and_own_requests_are_never_taken_for_it(both: Served) -> None:
    connect = sglang_driver if isinstance(both.server, ContractSGLang) else vllm_driver
    told: list[int] = []
    both.driver.on_change(lambda: told.append(both.driver.others.sequences))
    stranger = await connect(both.server)
    done: list[Generation | Exception] = []
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(outcome, both.driver, done)
        await until(lambda: len(both.server.engine.running) == 1)
        for _ in range(3):
            await both.driver.look()
            await stranger.look()
        assert both.driver.others.sequences == 0
        assert stranger.others.sequences == 1
        tasks.start_soon(outcome, stranger, done)
        await until(lambda: len(both.server.engine.running) == 2)
        for _ in range(2):
            await both.driver.look()
        assert both.driver.others.sequences == 1
        assert set(told) == {1}
        await stranger.close()
        await both.driver.close()


def with_tensors(place: Path, seed: int, dtype: torch.dtype = torch.bfloat16) -> DiskWeights:
    weights = contract_weights(place, seed)
    save_file({"w": torch.full((4,), float(seed), dtype=dtype)}, weights / "model.safetensors")
    return DiskWeights(str(weights))


async def test_a_server_that_ignores_an_update_is_found_out_by_its_checksum(tmp_path: Path) -> None:
    with_tensors(tmp_path, 0)
    async with served(sglang(tmp_path), sglang_driver) as it:
        shown = await it.driver.update_weights(WeightUpdate(with_tensors(tmp_path, 1), 1, UpdateMode.DRAIN))
        assert "its checksum was" in shown
        incarnation = it.driver.incarnation
        it.server.engine.ignores = True
        with pytest.raises(WeightUpdateError, match="as before, though w differs on disk") as refusal:
            await it.driver.update_weights(WeightUpdate(with_tensors(tmp_path, 2), 2, UpdateMode.DRAIN))
        assert not refusal.value.intact
        assert it.driver.incarnation != incarnation


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
async def test_weights_that_a_server_cannot_tell_from_those_of_before_are_taken(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    with_tensors(tmp_path, 0, dtype)
    async with served(sglang(tmp_path), sglang_driver) as it:
        same = tmp_path / "same"
        shutil.copytree(tmp_path / "0", same)
        if dtype is torch.float32:
            # A server rounds a small step away.
            save_file({"w": torch.full((4,), 1e-7)}, same / "model.safetensors")
        shown = await it.driver.update_weights(WeightUpdate(DiskWeights(str(same)), 1, UpdateMode.DRAIN))
        assert shown.endswith("as before")


async def test_a_server_without_a_checksum_has_its_version_alone(tmp_path: Path) -> None:
    async with served(server := sglang(tmp_path), sglang_driver) as it:
        server.gpu = False
        weights = DiskWeights(str(contract_weights(tmp_path, 1)))
        assert not await it.driver.update_weights(WeightUpdate(weights, 1, UpdateMode.DRAIN))


async def test_a_server_goes_back_to_the_weights_that_it_was_found_with(both: Served, tmp_path: Path) -> None:
    before = await both.driver.generate(request("a", prompt(20), max_new_tokens=8, temperature=0.0))
    weights = DiskWeights(str(contract_weights(tmp_path, 1)))
    await both.driver.update_weights(WeightUpdate(weights, 7, UpdateMode.DRAIN))
    await both.driver.update_weights(WeightUpdate(FirstWeights(), 0, UpdateMode.ABORT))
    after = await both.driver.generate(request("b", prompt(20), max_new_tokens=8, temperature=0.0))
    assert after.token_ids == before.token_ids
    assert await both.driver.read_policy_version() == 0
