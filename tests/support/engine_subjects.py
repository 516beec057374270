"""Engines that the contract suite of drivers runs against. Each factory starts one and says what a test needs of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from callsheet.managers.inference import tokenizer
from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.torch_engine.batcher import BatchLimits
from callsheet.managers.inference.torch_engine.driver import TorchEngineDriver
from callsheet.managers.inference.torch_engine.runner import ModelRunner
from callsheet.managers.models.config import TransformerConfig

from tests.support.torch_models import full_pass_log_probs, save_weights, small_model

# A context so long that a request for all of it is still running when the test wants to interfere.
CONFIG = TransformerConfig(context_length=16_384, layers=1, width=32, heads=2, hidden_width=48)


@dataclass(kw_only=True)
class Subject:
    """A driver and what a test needs to know of its engine, which starts with the weights of seed 0 as version 0.

    Attributes:
        driver: The driver.
        weights: Returns a directory with the weights of a seed, in the engine's own format; fresh, so that a test may
            damage it.
        other_shape: Returns a directory with usable weights of another model.
        weights_file: The file of such a directory that holds tensors.
        expected: Log-probabilities of an output after a prompt under the weights of a seed, by a plain reference.
        text: The text of new tokens.
        context_length: The most tokens of a sequence.
        most_requests: Live requests after which more are refused as busy; None where the engine has no such bound.
        cached_of_100: Tokens of a prompt of 100 that a second equal request finds cached.
        tolerance: By how much log-probabilities may differ from the reference.
    """

    driver: EngineDriver
    weights: Callable[[int], Path]
    other_shape: Callable[[], Path]
    weights_file: str
    expected: Callable[[int, tuple[int, ...], tuple[int, ...]], list[float]]
    text: Callable[[Sequence[int]], str]
    context_length: int
    most_requests: int | None
    cached_of_100: int
    tolerance: float


SubjectFactory = Callable[[Path], AbstractAsyncContextManager[Subject]]
"""Starts an engine, given a directory for its files, and ends it at the end of the `with` block."""


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
        )
    finally:
        await driver.close()


SUBJECTS: dict[str, SubjectFactory] = {"torch": torch_subject}
"""All engines that the suite runs against, by name."""
