"""Engines that the contract suite of drivers runs against. Each factory starts one and says what a test needs of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from callsheet.managers.inference import tokenizer
from callsheet.managers.inference.torch_engine.batcher import BatchLimits
from callsheet.managers.inference.torch_engine.driver import TorchEngineDriver
from callsheet.managers.inference.torch_engine.runner import ModelRunner
from callsheet.managers.models.config import TransformerConfig

from tests.support.engine_subject import Subject, SubjectFactory
from tests.support.hf_subject import hf_subject
from tests.support.scripted_subject import scripted_subject
from tests.support.served_subjects import SERVED
from tests.support.torch_models import full_pass_log_probs, save_weights, small_model

# A context so long that a request for all of it is still running when the test wants to interfere.
CONFIG = TransformerConfig(context_length=16_384, layers=1, width=32, heads=2, hidden_width=48)


@asynccontextmanager
async def torch_subject(place: Path) -> AsyncIterator[Subject]:
    """The embedded engine with the demo's model of byte tokens."""

    def weights(seed: int) -> Path:
        directory = place / str(seed)
        save_weights(small_model(seed, CONFIG), CONFIG, directory)
        return directory

    def other_shape() -> Path:
        other = TransformerConfig(layers=1)
        save_weights(small_model(1, other), other, place / "other")
        return place / "other"

    def expected(seed: int, tokens: tuple[int, ...], output: tuple[int, ...]) -> list[float]:
        return full_pass_log_probs(small_model(seed, CONFIG), tokens, output)

    runner = ModelRunner(small_model(0, CONFIG), kv_cache_tokens=4 * CONFIG.context_length)
    driver = TorchEngineDriver(
        runner, BatchLimits(prefill_chunk=32), max_requests=64, token_bytes=tokenizer.token_bytes
    )
    try:
        yield Subject(
            driver=driver,
            weights=weights,
            other_shape=other_shape,
            weights_file="weights.pt",
            expected=expected,
            text=tokenizer.decode,
            context_length=CONFIG.context_length,
            most_requests=64,
            cached_of_100=96,
            tolerance=2e-5,
            lengthy=800,
            wakes_whole=True,
        )
    finally:
        await driver.close()


SUBJECTS: dict[str, SubjectFactory] = {
    "torch": torch_subject,
    "transformers": hf_subject,
    "scripted": scripted_subject,
    **SERVED,
}
"""All engines that the suite runs against, by name."""
