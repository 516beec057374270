"""Engines that the contract suite of drivers runs against. Each factory starts one and says what a test needs of it."""

from __future__ import annotations

import math
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from callsheet.managers.inference import tokenizer
from callsheet.managers.inference.scripted_engine.driver import ScriptedEngineDriver
from callsheet.managers.inference.scripted_engine.script import EngineScript, ScriptedReply
from callsheet.managers.inference.scripted_engine.vocabulary import ByteVocabulary
from callsheet.managers.inference.torch_engine.driver import TorchEngineDriver
from callsheet.managers.inference.torch_engine.engine import TorchEngine
from callsheet.managers.inference.torch_engine.hf.loading import load_hf_model
from callsheet.managers.inference.torch_engine.runner import ModelRunner
from callsheet.managers.inference.torch_engine.weight_sources import WeightSources
from callsheet.managers.models.config import TransformerConfig
from transformers import PreTrainedModel

from tests.support import hf_models
from tests.support.engine_subject import Subject, SubjectFactory
from tests.support.served_subjects import SERVED
from tests.support.torch_models import full_pass_log_probs, save_weights, small_model

CONTEXT_LENGTH = 16_384


@asynccontextmanager
async def scripted_subject(place: Path) -> AsyncIterator[Subject]:
    """A scripted engine with the demo's bytes."""

    def expected(seed: int, tokens: tuple[int, ...], output: tuple[int, ...]) -> list[float]:
        # Any token but the end of a turn is as likely as any other.
        return [-math.log(tokenizer.VOCABULARY_SIZE - 1)] * len(output)

    script = EngineScript(
        replies=(ScriptedReply(random_tokens=CONTEXT_LENGTH, repeat=True),), context_length=CONTEXT_LENGTH
    )
    driver = ScriptedEngineDriver(script, ByteVocabulary(), max_requests=64)
    try:
        yield Subject(
            driver=driver,
            weights=lambda seed: place,
            other_shape=lambda: place,
            weights_file="",
            expected=expected,
            text=tokenizer.decode,
            context_length=CONTEXT_LENGTH,
            most_requests=64,
            cached_of_100=0,
            tolerance=1e-9,
            lengthy=800,
            wakes_whole=True,
        )
    finally:
        await driver.close()


CONTEXT_LENGTH = 16_384
_SHAPE = {"num_hidden_layers": 1, "hidden_size": 64}


@asynccontextmanager
async def hf_subject(place: Path) -> AsyncIterator[Subject]:
    """The embedded engine with a user's model, in the format of Hugging Face."""

    def directory(seed: int) -> Path:
        return hf_models.model_directory("qwen2", seed, **_SHAPE)

    def copied(source: Path, name: str) -> Path:
        shutil.copytree(source, place / name, dirs_exist_ok=True)
        return place / name

    def model(seed: int) -> PreTrainedModel:
        return hf_models.loaded_model(directory(seed))

    loaded = load_hf_model(directory(0), kv_cache_tokens=4 * CONTEXT_LENGTH, device="cpu")
    engine = TorchEngine(loaded.runner, prefill_chunk=32, token_bytes=loaded.token_bytes, end_tokens=loaded.end_tokens)
    driver = TorchEngineDriver(
        engine, WeightSources(loaded.runner), kv_cache_tokens=4 * CONTEXT_LENGTH, max_requests=64
    )
    try:
        yield Subject(
            driver=driver,
            weights=lambda seed: copied(directory(seed), str(seed)),
            other_shape=lambda: hf_models.model_directory("qwen2", 1, num_hidden_layers=2, hidden_size=64),
            weights_file="model.safetensors",
            expected=lambda seed, tokens, output: hf_models.reference_log_probs(model(seed), tokens, output),
            text=lambda ids: str(hf_models.byte_level_tokenizer().decode(list(ids), skip_special_tokens=True)),
            context_length=CONTEXT_LENGTH,
            most_requests=64,
            cached_of_100=96,
            tolerance=1e-4,
            lengthy=400,
            wakes_whole=True,
            tensors=lambda seed: model(seed).state_dict(),
        )
    finally:
        await driver.close()


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

    runner = ModelRunner(small_model(0, CONFIG))
    engine = TorchEngine(runner, prefill_chunk=32, token_bytes=tokenizer.token_bytes)
    driver = TorchEngineDriver(
        engine, WeightSources(runner), kv_cache_tokens=4 * CONFIG.context_length, max_requests=64
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
