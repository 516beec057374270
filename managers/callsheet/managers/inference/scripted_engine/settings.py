"""Settings of the scripted engine's own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedSettings:
    """There are none: all is in the script."""
