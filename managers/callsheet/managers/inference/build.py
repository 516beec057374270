"""Puts an inference manager's executor together from its settings and its engine."""

from __future__ import annotations

from dataclasses import replace

from callsheet.managers.inference.cores import reserved_cores
from callsheet.managers.inference.engine_kind import ENGINE_KINDS, UnloadedEngine
from callsheet.managers.inference.executor import InferenceExecutor, ServiceOptions
from callsheet.managers.inference.settings import InferenceSettings, share_of_cores
from callsheet.managers.models.first_use import FirstUse
from callsheet.managers.settings import ManagerSettings
from callsheet.options.declaration import from_texts


def build_inference_manager(settings: InferenceSettings, manager: ManagerSettings) -> InferenceExecutor:
    """Returns the executor of a manager on its node, with the engine that the settings name.

    Raises:
        ValueError: A setting breaks its rule, or there is no such engine.
    """
    threads = share_of_cores(len(manager.cores), settings.threads)
    settings = replace(settings, threads=threads, cores=reserved_cores(manager.node, threads))
    kind = ENGINE_KINDS.get(settings.engine)
    return build_inference_executor(settings, kind.build(from_texts(kind.settings, settings.engine_options), settings))


def build_inference_executor(settings: InferenceSettings, engine: UnloadedEngine) -> InferenceExecutor:
    """Returns the executor for `run_manager`, with the model loaded unless that is left to the first request.

    Raises:
        ValueError: A setting breaks its rule.
        WeightsError: The weights cannot be used. Where loading is left to the first request, tensors are read then.
    """
    options = ServiceOptions(
        model=settings.model,
        slots=settings.slots,
        reserved={"cpu": settings.thread_count} | ({"gpu": settings.gpus} if settings.gpus else {}),
        policy_version=settings.policy_version,
        abilities=engine.abilities,
        capabilities=engine.capabilities,
    )
    return InferenceExecutor(
        FirstUse(engine.load) if settings.load_at_first_use else FirstUse.of(engine.load()), options
    )
