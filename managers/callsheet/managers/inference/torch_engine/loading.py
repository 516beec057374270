"""Makes a torch engine from the settings of its manager."""

from __future__ import annotations

import structlog
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.tokenizer import VOCABULARY_SIZE, token_bytes
from callsheet.managers.inference.torch_engine.batcher import BatchLimits
from callsheet.managers.inference.torch_engine.driver import TorchEngineDriver
from callsheet.managers.inference.torch_engine.runner import ModelRunner
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.models.transformer import LanguageModel
from callsheet.managers.models.weights import load_model

log = structlog.get_logger(__name__)


def load_engine(torch: TorchSettings, settings: InferenceSettings) -> TorchEngineDriver:
    """Loads the model and starts the engine's compute thread.

    Raises:
        ValueError: A setting breaks its rule.
        WeightsError: The weights cannot be used.
    """
    limits = BatchLimits(
        max_running=settings.slots,
        prefill_chunk=torch.prefill_chunk,
        prefix_cache_tokens=torch.prefix_cache_tokens,
    )
    model = load_model(LanguageModel, settings.weights, torch.shape, settings.seed)
    runner = ModelRunner(model, kv_cache_tokens=settings.kv_cache_tokens, device=torch.device)
    driver = TorchEngineDriver(
        runner,
        limits,
        policy_version=settings.policy_version,
        # A model with another vocabulary brings no tokenizer with its weights.
        token_bytes=token_bytes if runner.config.vocabulary_size == VOCABULARY_SIZE else None,
        threads=settings.thread_count,
        cores=settings.cores,
    )
    log.info("torch engine started", model=settings.model, device=torch.device)
    return driver
