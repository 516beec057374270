"""Builds an inference manager's executor from its settings and its engine."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.engine_kind import ENGINE_KINDS, UnloadedEngine, with_defaults
from callsheet.managers.inference.executor import InferenceExecutor
from callsheet.managers.inference.settings import InferenceSettings, on_cores
from callsheet.managers.inference.weight_places import WeightPlaces
from callsheet.managers.models.first_use import FirstUse
from callsheet.managers.settings import ManagerSettings
from callsheet.options.declaration import from_texts


def build_inference_manager(settings: InferenceSettings, manager: ManagerSettings) -> InferenceExecutor:
    """Returns the executor of a manager on its node, with the engine that the settings name.

    Raises:
        ValueError: A setting breaks its rule, or there is no such engine.
    """
    settings = replace(settings, launch_name=manager.manager_id)
    if not settings.served_apart:
        # A server has cores of its own.
        settings = on_cores(settings, manager.cores)
    kind = ENGINE_KINDS.get(settings.engine)
    engine = kind.build(from_texts(kind.settings, settings.engine_options), settings)
    # Where callers need tokens, those who publish are not the operator.
    tokens = manager.credentials.token or manager.credentials.token_file
    return build_inference_executor(
        settings, engine, bounded=bool(tokens), node_gpus=int(manager.node.capacity.get("gpu", 0))
    )


def build_inference_executor(
    settings: InferenceSettings, engine: UnloadedEngine, *, bounded: bool = False, node_gpus: int = 0
) -> InferenceExecutor:
    """Returns the executor for `run_manager`, with the model loaded unless that is left to the first request.

    Args:
        settings: The manager's.
        engine: What to load.
        bounded: Whether published weights lie below `weights_below` also where that is empty.
        node_gpus: GPUs that its node registers.

    Raises:
        ValueError: A setting breaks its rule.
        WeightsError: The weights cannot be used. Where loading is left to the first request, tensors are read then.
    """
    load = partial(_load, engine)
    later = settings.load_at_first_use and not engine.attached
    driver = FirstUse(load) if later else FirstUse.of(load())
    places = WeightPlaces(settings.weights_below) if bounded or settings.weights_below else None
    return InferenceExecutor(driver, engine, settings, places, node_gpus=node_gpus)


def _load(engine: UnloadedEngine) -> EngineDriver:
    return with_defaults(engine.load())
