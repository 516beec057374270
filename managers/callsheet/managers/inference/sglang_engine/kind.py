"""SGLang as a driver that inference managers find by name. HTTP is imported when the server is looked for."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from callsheet.managers.inference.engine_kind import EngineKind, UnloadedEngine
from callsheet.managers.inference.launching.command import LaunchNeeds
from callsheet.managers.inference.launching.engine import served_engine
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings

if TYPE_CHECKING:
    from callsheet.managers.inference.http_engine.client import Where
    from callsheet.managers.inference.http_engine.driver import HttpEngineDriver

_NEEDS = LaunchNeeds(arguments=("--host", "{host}", "--port", "{port}"))


def sglang_engine(sglang: SGLangSettings, settings: InferenceSettings) -> UnloadedEngine:
    """Checks the settings of a manager of a server.

    Raises:
        ValueError: A setting breaks its rule.
    """

    def attach(where: Where, timeout_s: float) -> HttpEngineDriver:
        from callsheet.managers.inference.sglang_engine.driver import attach_sglang

        own = replace(sglang, attach_timeout=timeout_s)
        return attach_sglang(own, where, settings.engine_api_key, start_version=settings.policy_version)

    return served_engine("sglang", settings, _NEEDS, sglang.attach_timeout, attach)


KIND = EngineKind(name="sglang", settings=SGLangSettings, build=sglang_engine)
