"""The agent's program as the manager hands it to a sandbox, see `callsheet.managers.sandbox.agent`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

AGENT_DIRECTORY = Path(__file__).with_name("agent")


@cache
def agent_files() -> Mapping[str, bytes]:
    """Returns the contents of the agent's files by name. All of them belong into one directory, named "agent"."""
    return {path.name: path.read_bytes() for path in sorted(AGENT_DIRECTORY.glob("*.py"))}
