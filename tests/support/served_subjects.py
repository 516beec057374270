"""Servers of engines that the contract suite of drivers runs against, each with its driver."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from callsheet.managers.inference import tokenizer
from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.http_engine.client import EngineHttp
from callsheet.managers.inference.openai_engine.driver import OpenAIDriver
from callsheet.managers.inference.openai_engine.server import read_server as openai_server
from callsheet.managers.inference.openai_engine.settings import OpenAISettings
from callsheet.managers.inference.sglang_engine.driver import SGLangDriver
from callsheet.managers.inference.sglang_engine.server import read_server as sglang_server
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.inference.vllm_engine.driver import VLLMDriver
from callsheet.managers.inference.vllm_engine.server import read_server as vllm_server
from callsheet.managers.inference.vllm_engine.settings import VLLMSettings

from tests.support.contract_engine import ContractEngine
from tests.support.contract_http import ContractServer, running
from tests.support.contract_model import VOCABULARY, WEIGHTS_FILE, expected_log_probs, save_contract_weights
from tests.support.contract_openai import ContractOpenAI
from tests.support.contract_sglang import ContractSGLang
from tests.support.contract_vllm import ContractVLLM
from tests.support.engine_subject import Subject, SubjectFactory
from tests.support.real_engines import REAL_SERVERS

CONTEXT = 16_384
MOST_REQUESTS = 64


def contract_weights(place: Path, seed: int) -> Path:
    """A fresh directory with the weights of a seed."""
    return save_contract_weights(place / str(seed), seed)


def contract_engine(place: Path, **options: Any) -> Callable[[], ContractEngine]:
    """Makes engines with the weights of seed 0."""
    return partial(ContractEngine, contract_weights(place, 0), **options)


async def sglang_driver(server: ContractServer, settings: SGLangSettings | None = None) -> SGLangDriver:
    """A driver of a server in the dialect of SGLang."""
    http, settings = EngineHttp(server.url), settings or SGLangSettings()
    return SGLangDriver(http, await sglang_server(http, settings), settings, max_requests=MOST_REQUESTS)


async def vllm_driver(server: ContractServer, settings: VLLMSettings | None = None) -> VLLMDriver:
    """A driver of a server in the dialect of vLLM."""
    http, settings = EngineHttp(server.url), settings or VLLMSettings()
    return VLLMDriver(http, await vllm_server(http, settings), settings, max_requests=MOST_REQUESTS)


async def openai_driver(server: ContractServer, settings: OpenAISettings | None = None) -> OpenAIDriver:
    """A driver of a server with the completions API."""
    http = EngineHttp(server.url)
    settings = settings or OpenAISettings(vocabulary_size=VOCABULARY)
    return OpenAIDriver(http, await openai_server(http, settings), max_requests=MOST_REQUESTS)


@asynccontextmanager
async def _subject(
    place: Path, server: ContractServer, connect: Callable[[ContractServer], Awaitable[EngineDriver]]
) -> AsyncIterator[Subject]:
    async with running(server):
        driver = await connect(server)
        try:
            yield Subject(
                driver=driver,
                weights=partial(contract_weights, place),
                other_shape=lambda: save_contract_weights(place / "other", 1, vocabulary=9),
                weights_file=WEIGHTS_FILE,
                expected=expected_log_probs,
                text=tokenizer.decode,
                context_length=CONTEXT,
                most_requests=MOST_REQUESTS,
                cached_of_100=99,
                tolerance=1e-9,
                knows_intact=False,
            )
        finally:
            await driver.close()


def sglang_subject(place: Path) -> AbstractAsyncContextManager[Subject]:
    """The contract server in the dialect of SGLang."""
    return _subject(place, ContractSGLang(contract_engine(place)), sglang_driver)


def vllm_subject(place: Path) -> AbstractAsyncContextManager[Subject]:
    """The contract server in the dialect of vLLM."""
    return _subject(place, ContractVLLM(contract_engine(place, heeds_seeds=True, joint=False)), vllm_driver)


def openai_subject(place: Path) -> AbstractAsyncContextManager[Subject]:
    """The contract server with the completions API."""
    return _subject(place, ContractOpenAI(contract_engine(place)), openai_driver)


SERVED: dict[str, SubjectFactory] = {
    "contract-sglang": sglang_subject,
    "contract-vllm": vllm_subject,
    "contract-openai": openai_subject,
    **REAL_SERVERS,
}
"""All of them, by name."""
