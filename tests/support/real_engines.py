"""Real servers of engines that the contract suite of drivers runs against, where the environment says where they are.

`make conformance-sglang` and `make conformance-vllm` start them and run the suite. They are started with the weights of
seed 0 of `conformance_model`, and are put back to them before each test.
"""

from __future__ import annotations

import functools
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from callsheet.managers.inference.driver import EngineError, UpdateMode, WeightUpdate
from callsheet.managers.inference.http_engine.client import EngineHttp
from callsheet.managers.inference.sglang_engine.driver import SGLangDriver
from callsheet.managers.inference.sglang_engine.server import read_server
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.inference.weights import DiskWeights

from tests.support.engine_subject import Subject, SubjectFactory

SGLANG_URL = "CALLSHEET_CONFORMANCE_SGLANG_URL"
CONTEXT = 2048
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
async def real_sglang(place: Path) -> AsyncIterator[Subject]:
    """A real SGLang server."""
    await _put_back(await _sglang_driver(), place)
    driver = await _sglang_driver()
    try:
        yield Subject(
            driver=driver,
            weights=lambda seed: conformance_model(place / str(seed), seed),
            other_shape=lambda: conformance_model(place / "other", 1, intermediate_size=128),
            weights_file="model.safetensors",
            expected=_expected,
            text=_text,
            context_length=CONTEXT,
            most_requests=MOST_REQUESTS,
            cached_of_100=99,
            tolerance=1e-4,
            endless=1900,
            lengthy=60,
        )
    finally:
        await driver.close()


async def _sglang_driver() -> SGLangDriver:
    http = EngineHttp(os.environ[SGLANG_URL])
    settings = SGLangSettings()
    try:
        return SGLangDriver(http, await read_server(http, settings), settings, max_requests=MOST_REQUESTS)
    except EngineError:
        await http.close()
        raise


async def _put_back(driver: SGLangDriver, place: Path) -> None:
    await driver.update_weights(
        WeightUpdate(DiskWeights(str(conformance_model(place / "start", 0))), 0, UpdateMode.ABORT, timeout_s=SETTLE_S)
    )
    await driver.flush()
    await driver.close()


_FACTORIES: dict[str, tuple[str, SubjectFactory]] = {"sglang": (SGLANG_URL, real_sglang)}
REAL_SERVERS = {name: factory for name, (variable, factory) in _FACTORIES.items() if os.environ.get(variable)}
"""Those that the environment names."""
