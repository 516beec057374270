"""A driver of servers with the completions API of OpenAI, which inference managers find by name.

HTTP is imported when the server is looked for.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from callsheet.managers.inference.engine_kind import EngineKind, UnloadedEngine
from callsheet.managers.inference.launching.command import LaunchNeeds
from callsheet.managers.inference.launching.engine import served_engine
from callsheet.managers.inference.openai_engine.settings import OpenAISettings
from callsheet.managers.inference.settings import InferenceSettings

if TYPE_CHECKING:
    from callsheet.managers.inference.http_engine.client import Where
    from callsheet.managers.inference.http_engine.driver import HttpEngineDriver

_NEEDS = LaunchNeeds()


def openai_engine(openai: OpenAISettings, settings: InferenceSettings) -> UnloadedEngine:
    """Checks the settings of a manager of a server.

    Raises:
        ValueError: A setting breaks its rule.
    """

    def attach(where: Where, timeout_s: float) -> HttpEngineDriver:
        from callsheet.managers.inference.openai_engine.driver import attach_openai

        own = replace(openai, attach_timeout=timeout_s)
        return attach_openai(own, where, settings.engine_api_key, start_version=settings.policy_version)

    return served_engine("openai", settings, _NEEDS, openai.attach_timeout, attach)


KIND = EngineKind(name="openai", settings=OpenAISettings, build=openai_engine)
