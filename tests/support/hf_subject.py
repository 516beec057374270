"""The embedded engine with a user's model, for the contract suite of drivers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from callsheet.managers.inference.torch_engine.batcher import BatchLimits
from callsheet.managers.inference.torch_engine.driver import TorchEngineDriver
from callsheet.managers.inference.torch_engine.hf.loading import load_hf_model
from transformers import PreTrainedModel

from tests.support import hf_models
from tests.support.engine_subject import Subject

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
    driver = TorchEngineDriver(
        loaded.runner,
        BatchLimits(prefill_chunk=32),
        max_requests=64,
        token_bytes=loaded.token_bytes,
        end_tokens=loaded.end_tokens,
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
