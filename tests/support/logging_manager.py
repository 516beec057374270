"""A no-op manager as a process that logs every start.

    python -m tests.support.logging_manager ADDRESS NAME START_LOG [SERVICE ...]

It differs from `callsheet manager noop` in its patience: it dials a scheduler that went away more often. It serves all
kinds under the services that are named.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import anyio
from callsheet.deploy.child import ParentLink
from callsheet.managers.node import describe_node
from callsheet.managers.noop import NoopExecutor, NoopService, NoopSettings
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings

_MEMORY_MIB = 65_536


async def _serve(settings: ManagerSettings, noop: NoopSettings, link: ParentLink) -> None:
    async with anyio.create_task_group() as tasks:
        await tasks.start(functools.partial(run_manager, settings, NoopExecutor(noop)))
        link.report_ready()


def main() -> None:
    """Runs the manager, on a node of its own with one core, until it is told to leave."""
    link = ParentLink.adopt()
    address, name, start_log, *named = sys.argv[1:]
    services = tuple(map(NoopService, named)) or (NoopService(),)
    node = describe_node(node_id=f"node of {name}", cpus=1, memory_mib=_MEMORY_MIB)
    settings = ManagerSettings(address, name, node, reconnect_initial_s=0.05, reconnect_max_s=0.25)
    anyio.run(_serve, settings, NoopSettings(services, start_log=Path(start_log)), link)


if __name__ == "__main__":
    main()
