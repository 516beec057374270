"""The torch engine as a driver that inference managers find by name. Torch is imported when the model is loaded."""

from __future__ import annotations

from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.engine_kind import EngineKind, UnloadedEngine
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.tokenizer import VOCABULARY_SIZE
from callsheet.managers.inference.torch_engine.abilities import torch_abilities
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.models.config_file import check_weights


def torch_engine(torch: TorchSettings, settings: InferenceSettings) -> UnloadedEngine:
    """Checks the settings of an engine.

    Raises:
        ValueError: A setting breaks its rule.
        WeightsError: The weights cannot be used. Where loading is left to the first request, tensors are read then.
    """
    config = torch.shape if settings.weights is None else check_weights(settings.weights)

    def load() -> EngineDriver:
        from callsheet.managers.inference.torch_engine.loading import load_engine

        return load_engine(torch, settings)

    capabilities = {
        "engine": "torch",
        "device": torch.device,
        "weights": "random" if settings.weights is None else "file",
        "kv_cache_tokens": str(settings.kv_cache_tokens),
        "kv_cache_bytes": str(settings.kv_cache_tokens * config.kv_bytes_per_token),
        "context_length": str(config.context_length),
    }
    abilities = torch_abilities(
        prefix_cache=torch.prefix_cache_tokens > 0, stop_texts=config.vocabulary_size == VOCABULARY_SIZE
    )
    return UnloadedEngine(abilities, capabilities, load)


KIND = EngineKind(name="torch", settings=TorchSettings, build=torch_engine)
