"""Real servers of engines that the contract suite of drivers runs against, where the environment says where they are.

`make conformance-sglang` and `make conformance-vllm` start them and run the suite. They are started with the weights of
seed 0 of `conformance_model`, and are put back to them before each test.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from callsheet.managers.inference.driver import EngineDriver, EngineError, UpdateMode, WeightUpdate
from callsheet.managers.inference.http_engine.client import EngineHttp
from callsheet.managers.inference.sglang_engine.driver import SGLangDriver
from callsheet.managers.inference.sglang_engine.server import read_server as sglang_server
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.inference.vllm_engine.driver import VLLMDriver
from callsheet.managers.inference.vllm_engine.server import read_server as vllm_server
from callsheet.managers.inference.vllm_engine.settings import VLLMSettings
from callsheet.managers.inference.weights import DiskWeights

from tests.support.engine_subject import Subject, SubjectFactory

SGLANG_URL = "CALLSHEET_CONFORMANCE_SGLANG_URL"
VLLM_URL = "CALLSHEET_CONFORMANCE_VLLM_URL"
MOST_REQUESTS = 64
SETTLE_S = 60.0
"""A request for the whole context takes some seconds on a CPU."""


def conformance_model(place: Path, seed: int, **changes: object) -> Path:
    """Writes the model of a seed, fresh, without an end token; returns where."""
    from tests.support.hf_models import save_model, seeded_model, tokenizer_without_end

    return save_model(place, seeded_model("qwen2", seed, **changes), tokenizer_without_end())


@functools.cache
def _expected(seed: int, tokens: tuple[int, ...], output: tuple[int, ...]) -> list[float]:
    from tests.support.hf_models import reference_log_probs, seeded_model

    return reference_log_probs(seeded_model("qwen2", seed), tokens, output)


def _text(tokens: Sequence[int]) -> str:
    from tests.support.hf_models import tokenizer_without_end

    return str(tokenizer_without_end().decode(list(tokens), skip_special_tokens=True))


@asynccontextmanager
async def _real(connect: Callable[[], Awaitable[EngineDriver]], place: Path) -> AsyncIterator[Subject]:
    await _put_back(await connect(), place)
    driver = await connect()
    context = CONTEXT[type(driver)]
    try:
        yield Subject(
            driver=driver,
            weights=lambda seed: conformance_model(place / str(seed), seed),
            other_shape=lambda: conformance_model(place / "other", 1, intermediate_size=128),
            weights_file="model.safetensors",
            expected=_expected,
            text=_text,
            context_length=context,
            most_requests=MOST_REQUESTS,
            cached_of_100=CACHED_OF_100[type(driver)],
            tolerance=1e-4,
            endless=context - 148,
            lengthy=60,
        )
    finally:
        await driver.close()


async def _put_back(driver: EngineDriver, place: Path) -> None:
    start = DiskWeights(str(conformance_model(place / "start", 0)))
    await driver.update_weights(WeightUpdate(start, 0, UpdateMode.ABORT, timeout_s=SETTLE_S))
    await driver.close()


async def _sglang_driver() -> SGLangDriver:
    http, settings = EngineHttp(os.environ[SGLANG_URL]), SGLangSettings()
    try:
        return SGLangDriver(http, await sglang_server(http, settings), settings, max_requests=MOST_REQUESTS)
    except EngineError:
        await http.close()
        raise


async def _vllm_driver() -> VLLMDriver:
    http, settings = EngineHttp(os.environ[VLLM_URL]), VLLMSettings()
    try:
        return VLLMDriver(http, await vllm_server(http, settings), settings, max_requests=MOST_REQUESTS)
    except EngineError:
        await http.close()
        raise


CONTEXT: dict[type[EngineDriver], int] = {SGLangDriver: 2048, VLLMDriver: 8192}
"""Tokens of a sequence, as `scripts/others.py` has it. On a busy machine vLLM makes 2,000 before an abort comes."""
CACHED_OF_100: dict[type[EngineDriver], int] = {SGLangDriver: 99, VLLMDriver: 0}
"""Tokens of a prompt of 100 that are found cached: all but one, or whole blocks."""
_FACTORIES: dict[str, tuple[str, SubjectFactory]] = {
    "sglang": (SGLANG_URL, partial(_real, _sglang_driver)),
    "vllm": (VLLM_URL, partial(_real, _vllm_driver)),
}
REAL_SERVERS = {name: factory for name, (variable, factory) in _FACTORIES.items() if os.environ.get(variable)}
"""Those that the environment names."""
