"""A driver of servers with the completions API of OpenAI, which inference managers find by name.

HTTP is imported when the server is looked for.
"""

from __future__ import annotations

from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.engine_kind import EngineKind, UnloadedEngine
from callsheet.managers.inference.http_engine.abilities import NOT_ATTACHED
from callsheet.managers.inference.openai_engine.settings import OpenAISettings
from callsheet.managers.inference.settings import InferenceSettings


def openai_engine(openai: OpenAISettings, settings: InferenceSettings) -> UnloadedEngine:
    """Checks the settings of a manager of a server.

    Raises:
        ValueError: A setting breaks its rule.
    """
    url = settings.server_url

    def load() -> EngineDriver:
        from callsheet.managers.inference.openai_engine.attaching import attach_openai

        return attach_openai(openai, url, settings.engine_api_key, start_version=settings.policy_version)

    return UnloadedEngine(NOT_ATTACHED, {"engine": "openai", "url": url}, load, attached=True)


KIND = EngineKind(name="openai", settings=OpenAISettings, build=openai_engine)
