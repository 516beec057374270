"""Makes a torch engine from the settings of its manager."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import structlog
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.tokenizer import token_bytes
from callsheet.managers.inference.torch_engine.driver import TorchEngineDriver
from callsheet.managers.inference.torch_engine.engine import TorchEngine
from callsheet.managers.inference.torch_engine.runner import ModelRunner, Runner
from callsheet.managers.inference.torch_engine.sequence import TokenBytes
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.inference.torch_engine.weight_sources import FirstState, WeightSources
from callsheet.managers.models.transformer import LanguageModel
from callsheet.managers.models.weights import load_model
from callsheet.v1.names import VOCABULARY_SIZE
from torch import Tensor

log = structlog.get_logger(__name__)


def load_engine(torch: TorchSettings, settings: InferenceSettings) -> TorchEngineDriver:
    """Loads the demo's model and starts the engine's compute thread.

    Raises:
        ValueError: A setting breaks its rule.
        WeightsError: The weights cannot be used.
    """
    model = load_model(LanguageModel, settings.weights, torch.shape, settings.seed)
    # A model with another vocabulary brings no tokenizer with its weights.
    text = token_bytes if model.config.vocabulary_size == VOCABULARY_SIZE else None

    def first() -> Mapping[str, Tensor]:
        return load_model(LanguageModel, settings.weights, torch.shape, settings.seed).state_dict()

    return _start(ModelRunner(model, device=torch.device), torch, settings, text, frozenset(), first=first)


def load_own_model(directory: Path, torch: TorchSettings, settings: InferenceSettings) -> TorchEngineDriver:
    """Loads a user's model and starts the engine's compute thread.

    Raises:
        ValueError: A setting breaks its rule.
        WeightsError: The directory does not hold a model that can be served.
    """
    # Transformers takes seconds to import, which the demo's model does without.
    from callsheet.managers.inference.torch_engine.hf.loading import load_hf_model

    loaded = load_hf_model(directory, kv_cache_tokens=settings.kv_cache_tokens, device=torch.device, dtype=torch.dtype)
    first = partial(loaded.runner.read_weights, directory)
    return _start(loaded.runner, torch, settings, loaded.token_bytes, loaded.end_tokens, first=first)


def _start(
    runner: Runner,
    torch: TorchSettings,
    settings: InferenceSettings,
    text: TokenBytes | None,
    end_tokens: frozenset[int],
    *,
    first: FirstState,
) -> TorchEngineDriver:
    engine = TorchEngine(
        runner,
        version=settings.policy_version,
        prefill_chunk=torch.prefill_chunk,
        prefix_cache_tokens=torch.prefix_cache_tokens,
        token_bytes=text,
        end_tokens=end_tokens,
    )
    driver = TorchEngineDriver(
        engine,
        WeightSources(runner, first),
        kv_cache_tokens=settings.kv_cache_tokens,
        # One more than attempts: a canary must not wait until one of them has ended.
        max_running=settings.slots + 1,
        threads=settings.thread_count,
        cores=settings.cores,
    )
    log.info("torch engine started", model=settings.model, device=torch.device)
    return driver
