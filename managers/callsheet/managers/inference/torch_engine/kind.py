"""The torch engine as a driver that inference managers find by name. Torch is imported when the model is loaded."""

from __future__ import annotations

from pathlib import Path

from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.engine_kind import EngineKind, UnloadedEngine
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.abilities import torch_abilities
from callsheet.managers.inference.torch_engine.settings import TorchSettings, served_context, served_dtype
from callsheet.managers.models.config_file import check_weights
from callsheet.managers.models.hf_directory import read_model_directory
from callsheet.v1.names import VOCABULARY_SIZE


def torch_engine(torch: TorchSettings, settings: InferenceSettings) -> UnloadedEngine:
    """Checks the settings of an engine: of the user's own model if its directory is given, else of the demo's.

    Raises:
        ValueError: A setting breaks its rule.
        WeightsError: The weights cannot be used. Where loading is left to the first request, tensors are read then.
    """
    common = {"engine": "torch", "device": torch.device, "kv_cache_tokens": str(settings.kv_cache_tokens)}
    if (directory := settings.model_directory) is not None:
        return _own_model(directory, torch, settings, common)
    return _demo_model(torch, settings, common)


def _own_model(
    directory: Path, torch: TorchSettings, settings: InferenceSettings, common: dict[str, str]
) -> UnloadedEngine:
    described = read_model_directory(directory)
    dtype = served_dtype(torch.dtype, torch.device, described.dtype)

    def load() -> EngineDriver:
        from callsheet.managers.inference.torch_engine.loading import load_own_model

        return load_own_model(directory, torch, settings)

    capabilities = common | {
        "weights": "directory",
        "model": directory.name,
        "architecture": described.architecture,
        "dtype": dtype,
        "parameters": str(described.parameters),
        "context_length": str(served_context(described.context_length, settings.kv_cache_tokens)),
        "chat_template": "yes" if described.chat_template else "no",
    }
    abilities = torch_abilities(
        prefix_cache=torch.prefix_cache_tokens > 0,
        stop_texts=described.tokenizer,
        device=torch.device,
        half_precision=dtype != "float32",
    )
    return UnloadedEngine(abilities, capabilities, load)


def _demo_model(torch: TorchSettings, settings: InferenceSettings, common: dict[str, str]) -> UnloadedEngine:
    config = torch.shape if settings.weights is None else check_weights(settings.weights)

    def load() -> EngineDriver:
        from callsheet.managers.inference.torch_engine.loading import load_engine

        return load_engine(torch, settings)

    capabilities = common | {
        "weights": "random" if settings.weights is None else "file",
        "kv_cache_bytes": str(settings.kv_cache_tokens * config.kv_bytes_per_token),
        "context_length": str(config.context_length),
    }
    abilities = torch_abilities(
        prefix_cache=torch.prefix_cache_tokens > 0,
        stop_texts=config.vocabulary_size == VOCABULARY_SIZE,
        device=torch.device,
    )
    return UnloadedEngine(abilities, capabilities, load)


KIND = EngineKind(name="torch", settings=TorchSettings, build=torch_engine)
