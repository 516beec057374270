"""The scripted engine as a driver that inference managers find by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.engine_kind import EngineKind, UnloadedEngine
from callsheet.managers.inference.scripted_engine.driver import SCRIPTED_ABILITIES, ScriptedEngineDriver
from callsheet.managers.inference.scripted_engine.record import record_to
from callsheet.managers.inference.scripted_engine.script import read_script
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.options.declaration import PathRule, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedSettings:
    """Settings of this engine only; the rest is in the script."""

    record: Annotated[
        Path | None,
        Setting(
            "File to which each request is added with its tokens, as a JSON line.",
            default_text="none",
            path=PathRule(file=True, directory=False),
        ),
    ] = None


def scripted_engine(own: ScriptedSettings, settings: InferenceSettings) -> UnloadedEngine:
    """Reads the script.

    Raises:
        ValueError: There is none, or it breaks a rule.
    """
    file = settings.script
    if file is None:
        raise ValueError("script: none is given; the scripted engine answers by one")
    try:
        script = read_script(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"script: {str(file)!r}: {error}") from error

    def load() -> EngineDriver:
        from callsheet.managers.inference.scripted_engine.vocabulary import load_vocabulary

        vocabulary = load_vocabulary(settings.model_directory)
        record = None if own.record is None else record_to(own.record)
        return ScriptedEngineDriver(script, vocabulary, policy_version=settings.policy_version, record=record)

    capabilities = {"engine": "scripted", "script": file.name, "context_length": str(script.context_length)}
    return UnloadedEngine(SCRIPTED_ABILITIES, capabilities, load)


KIND = EngineKind(name="scripted", settings=ScriptedSettings, build=scripted_engine)
