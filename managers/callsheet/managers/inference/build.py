"""Puts an inference manager's executor together from its settings. Torch is imported when the model is loaded."""

from __future__ import annotations

from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.executor import InferenceExecutor, ServiceOptions
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.tokenizer import VOCABULARY_SIZE
from callsheet.managers.inference.torch_engine.abilities import torch_abilities
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.config_file import check_weights
from callsheet.managers.models.first_use import FirstUse


def build_inference_executor(settings: InferenceSettings) -> InferenceExecutor:
    """Returns the executor for `run_manager`, with the model loaded unless that is left to the first request.

    Raises:
        ValueError: A setting breaks its rule.
        WeightsError: The weights cannot be used. Where loading is left to the first request, tensors are read then.
    """
    config = settings.shape if settings.weights is None else check_weights(settings.weights)
    options = ServiceOptions(
        model=settings.model,
        slots=settings.slots,
        reserved={"cpu": settings.threads} | ({"gpu": settings.gpus} if settings.gpus else {}),
        policy_version=settings.policy_version,
        abilities=torch_abilities(
            prefix_cache=settings.prefix_cache_tokens > 0, stop_texts=config.vocabulary_size == VOCABULARY_SIZE
        ),
        capabilities=_capabilities(settings, config),
    )
    engine = FirstUse(lambda: _load(settings)) if settings.load_at_first_use else FirstUse.of(_load(settings))
    return InferenceExecutor(engine, options)


def _load(settings: InferenceSettings) -> EngineDriver:
    from callsheet.managers.inference.torch_engine.loading import load_engine

    return load_engine(settings)


def _capabilities(settings: InferenceSettings, config: TransformerConfig) -> dict[str, str]:
    return {
        "engine": "torch",
        "device": settings.device,
        "weights": "random" if settings.weights is None else "file",
        "kv_cache_tokens": str(settings.kv_cache_tokens),
        "kv_cache_bytes": str(settings.kv_cache_tokens * config.kv_bytes_per_token),
        "context_length": str(config.context_length),
    }
