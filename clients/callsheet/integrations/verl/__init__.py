"""Callsheet within verl: episodes, tools, rewards and generation are scheduled actions.

docs/how-to/trainers/verl.md tells how to adopt it. verl is imported when a name is used that needs it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from callsheet.integrations.verl.rows import dataset_rows
from callsheet.integrations.verl.score import LostRewardError, score_by_actions

if TYPE_CHECKING:
    from callsheet.integrations.verl.advantages import group_advantages
    from callsheet.integrations.verl.agent_loop import EpisodeAgentLoop
    from callsheet.integrations.verl.manager import (
        CallsheetAgentLoopManager,
        CallsheetAgentLoopManagerTQ,
        CountingAgentLoopManager,
    )
    from callsheet.integrations.verl.server_client import CallsheetServerClient
    from callsheet.integrations.verl.tools import SandboxTool, SandboxToolAgentLoop

__all__ = [
    "CallsheetAgentLoopManager",
    "CallsheetAgentLoopManagerTQ",
    "CallsheetServerClient",
    "CountingAgentLoopManager",
    "EpisodeAgentLoop",
    "LostRewardError",
    "SandboxTool",
    "SandboxToolAgentLoop",
    "dataset_rows",
    "group_advantages",
    "score_by_actions",
]

_MODULES = {
    "CallsheetAgentLoopManager": "manager",
    "CallsheetAgentLoopManagerTQ": "manager",
    "CallsheetServerClient": "server_client",
    "CountingAgentLoopManager": "manager",
    "EpisodeAgentLoop": "agent_loop",
    "SandboxTool": "tools",
    "SandboxToolAgentLoop": "tools",
    "group_advantages": "advantages",
}


def __getattr__(name: str) -> Any:
    """Imports what needs verl when it is asked for."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
