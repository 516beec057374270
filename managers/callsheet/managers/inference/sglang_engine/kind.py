"""SGLang as a driver that inference managers find by name. HTTP is imported when the server is looked for."""

from __future__ import annotations

from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.engine_kind import EngineKind, UnloadedEngine
from callsheet.managers.inference.http_engine.abilities import NOT_ATTACHED
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings


def sglang_engine(sglang: SGLangSettings, settings: InferenceSettings) -> UnloadedEngine:
    """Checks the settings of a manager of a server.

    Raises:
        ValueError: A setting breaks its rule.
    """
    url = settings.server_url

    def load() -> EngineDriver:
        from callsheet.managers.inference.sglang_engine.attaching import attach_sglang

        return attach_sglang(sglang, url, settings.engine_api_key, start_version=settings.policy_version)

    return UnloadedEngine(NOT_ATTACHED, {"engine": "sglang", "url": url}, load, attached=True)


KIND = EngineKind(name="sglang", settings=SGLangSettings, build=sglang_engine)
