"""Settings of the scripted engine's own. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from callsheet.options.declaration import PathRule, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedSettings:
    """What only this engine is told; all else is in the script."""

    record: Annotated[
        Path | None,
        Setting(
            "File to which each request is added with its tokens, as a JSON line.",
            default_text="none",
            path=PathRule(file=True, directory=False),
        ),
    ] = None
