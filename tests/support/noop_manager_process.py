"""A no-op manager as a process of its own: `python -m tests.support.noop_manager_process ADDRESS DRAIN_TIMEOUT_S`."""

from __future__ import annotations

import sys

import anyio
from callsheet.managers.noop import NoopExecutor, NoopSettings
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings

from tests.support.running_manager import NODE


def main() -> None:
    """Runs the manager until it is told to leave."""
    settings = ManagerSettings(sys.argv[1], "m", NODE, drain_timeout_s=float(sys.argv[2]), acknowledge_timeout_s=30.0)
    anyio.run(run_manager, settings, NoopExecutor(NoopSettings()))


if __name__ == "__main__":
    main()
