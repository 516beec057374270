"""The kind of manager that serves language models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from callsheet.managers.executor import Executor
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.kind import ANY_SERVICE, ManagerKind, ServedActions
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import action_pb2


def _build(settings: InferenceSettings, manager: ManagerSettings) -> Executor:
    from callsheet.managers.inference.build import build_inference_manager

    return build_inference_manager(settings, manager)


def _one_per_server(settings: InferenceSettings) -> Sequence[InferenceSettings]:
    """An engine is a manager, so that each generation is sent to one of them by the scheduler."""
    attached = [replace(settings, urls=(url,)) for url in settings.urls]
    launched = [replace(settings, launches=(command,)) for command in settings.launches]
    return attached or launched or [settings]


KIND = ManagerKind(
    name="inference",
    summary="Serve generate actions with an engine of language models.",
    settings=InferenceSettings,
    build=_build,
    apart=_one_per_server,
    serves=(ServedActions(ANY_SERVICE, (action_pb2.ACTION_KIND_GENERATE,)),),
    extra="inference",
)
