"""Callsheet within verifiers, and so within prime-rl: sandboxes, episodes and rewards are scheduled actions.

docs/how-to/trainers/verifiers.md tells how to adopt it. verifiers is imported when a name is used that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from callsheet.integrations.borrowed_sandbox import BorrowedSandbox, BorrowedSandboxSettings

if TYPE_CHECKING:
    from callsheet.integrations.verifiers.env import CallsheetEnv, CallsheetEnvConfig
    from callsheet.integrations.verifiers.harness import EpisodeHarness, EpisodeHarnessConfig
    from callsheet.integrations.verifiers.rewards import reward_by_function, reward_of
    from callsheet.integrations.verifiers.runtime import CallsheetRuntime
    from callsheet.integrations.verifiers.tasks import CallsheetTask, CallsheetTaskset, CallsheetTasksetConfig

__all__ = [
    "BorrowedSandbox",
    "BorrowedSandboxSettings",
    "CallsheetEnv",
    "CallsheetEnvConfig",
    "CallsheetRuntime",
    "CallsheetTask",
    "CallsheetTaskset",
    "CallsheetTasksetConfig",
    "EpisodeHarness",
    "EpisodeHarnessConfig",
    "reward_by_function",
    "reward_of",
]

_MODULES = {
    "CallsheetEnv": "env",
    "CallsheetEnvConfig": "env",
    "CallsheetRuntime": "runtime",
    "CallsheetTask": "tasks",
    "CallsheetTaskset": "tasks",
    "CallsheetTasksetConfig": "tasks",
    "EpisodeHarness": "harness",
    "EpisodeHarnessConfig": "harness",
    "reward_by_function": "rewards",
    "reward_of": "rewards",
}


def __getattr__(name: str) -> Any:
    """Imports what needs verifiers when it is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
