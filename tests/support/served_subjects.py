"""Servers of engines that the contract suite of drivers runs against, each with its driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from callsheet.managers.inference import tokenizer
from callsheet.managers.inference.http_engine.client import EngineHttp
from callsheet.managers.inference.sglang_engine.driver import SGLangDriver
from callsheet.managers.inference.sglang_engine.server import read_server
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings

from tests.support.contract_engine import ContractEngine
from tests.support.contract_http import running
from tests.support.contract_model import WEIGHTS_FILE, expected_log_probs, save_contract_weights
from tests.support.contract_sglang import ContractSGLang
from tests.support.engine_subject import Subject, SubjectFactory
from tests.support.real_engines import REAL_SERVERS

CONTEXT = 16_384
MOST_REQUESTS = 64


def contract_weights(place: Path, seed: int) -> Path:
    """A fresh directory with the weights of a seed."""
    return save_contract_weights(place / str(seed), seed)


@asynccontextmanager
async def sglang_subject(place: Path) -> AsyncIterator[Subject]:
    """The contract server in the dialect of SGLang."""
    server = ContractSGLang(partial(ContractEngine, contract_weights(place, 0)))
    async with running(server):
        http = EngineHttp(server.url)
        settings = SGLangSettings()
        found = await read_server(http, settings)
        driver = SGLangDriver(http, found, settings, max_requests=MOST_REQUESTS)
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


SERVED: dict[str, SubjectFactory] = {"contract-sglang": sglang_subject, **REAL_SERVERS}
"""All of them, by name."""
