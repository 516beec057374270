"""Puts an inference manager's executor together from its settings."""

from __future__ import annotations

import structlog
from callsheet.managers.inference.executor import InferenceExecutor, ServiceOptions
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.tokenizer import VOCABULARY_SIZE, token_bytes
from callsheet.managers.inference.torch_engine.batcher import BatchLimits
from callsheet.managers.inference.torch_engine.driver import TorchEngineDriver
from callsheet.managers.inference.torch_engine.runner import ModelRunner
from callsheet.managers.models.transformer import LanguageModel, initialise
from callsheet.managers.models.weights import read_config, read_state, shapes

log = structlog.get_logger(__name__)


def build_inference_executor(settings: InferenceSettings) -> InferenceExecutor:
    """Loads the model, starts the engine's compute thread and returns the executor for `run_manager`.

    Raises:
        ValueError: A setting breaks its rule.
        WeightsError: The weights cannot be used.
    """
    limits = BatchLimits(
        max_running=settings.slots,
        prefill_chunk=settings.prefill_chunk,
        prefix_cache_tokens=settings.prefix_cache_tokens,
    )
    runner = ModelRunner(_load(settings), kv_cache_tokens=settings.kv_cache_tokens, device=settings.device)
    driver = TorchEngineDriver(
        runner,
        limits,
        policy_version=settings.policy_version,
        # A model with another vocabulary brings no tokenizer with its weights.
        token_bytes=token_bytes if runner.config.vocabulary_size == VOCABULARY_SIZE else None,
        threads=settings.threads,
        cores=settings.cores,
    )
    options = ServiceOptions(
        model=settings.model,
        slots=settings.slots,
        reserved={"cpu": settings.threads} | ({"gpu": settings.gpus} if settings.gpus else {}),
        capabilities=_capabilities(settings, runner),
    )
    log.info("torch engine started", model=settings.model, **options.capabilities or {})
    return InferenceExecutor(driver, options)


def _load(settings: InferenceSettings) -> LanguageModel:
    if settings.weights is None:
        model = LanguageModel(settings.shape)
        initialise(model, settings.seed)
        return model
    model = LanguageModel(read_config(settings.weights))
    model.load_state_dict(read_state(settings.weights, shapes(model)))
    return model


def _capabilities(settings: InferenceSettings, runner: ModelRunner) -> dict[str, str]:
    return {
        "engine": "torch",
        "device": settings.device,
        "weights": "random" if settings.weights is None else "file",
        "kv_cache_tokens": str(settings.kv_cache_tokens),
        "kv_cache_bytes": str(settings.kv_cache_tokens * runner.config.kv_bytes_per_token),
        "context_length": str(runner.config.context_length),
    }
