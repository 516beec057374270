"""Many managers that do nothing, in one process: each has a node, a channel and a session of its own."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence

import anyio
import grpc.aio
from callsheet.credentials.channel import Credentials
from callsheet.deploy.child import ParentLink
from callsheet.managers.node import describe_node
from callsheet.managers.noop import NoopExecutor, NoopSettings
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings


class _OwnConnection(Credentials):
    """Channels with a connection each; gRPC shares one among all channels of a process to the same place."""

    def open_channel(self, target: str, options: Sequence[tuple[str, int | str]]) -> grpc.aio.Channel:
        return Credentials.open_channel(self, target, (*options, ("grpc.use_local_subchannel_pool", 1)))


async def serve(scheduler: str, managers: int, link: ParentLink) -> None:
    """Runs that many managers until SIGTERM; reports to the parent once all are registered."""
    stop = anyio.Event()
    with anyio.open_signal_receiver(signal.SIGTERM) as signals:
        async with anyio.create_task_group() as running:
            for number in range(managers):
                node = describe_node(node_id=f"noop-{number}")
                settings = ManagerSettings(
                    scheduler, node.node_id, node, credentials=_OwnConnection(), handle_signals=False
                )
                await running.start(
                    lambda *, task_status, settings=settings: run_manager(
                        settings, NoopExecutor(NoopSettings()), stop=stop, task_status=task_status
                    )
                )
            link.report_ready()
            async for _ in signals:
                stop.set()
                break


def main() -> None:
    """Entry point of the managers' process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scheduler", required=True)
    parser.add_argument("--managers", type=int, required=True)
    arguments = parser.parse_args()
    link = ParentLink.adopt()
    anyio.run(serve, arguments.scheduler, arguments.managers, link)


if __name__ == "__main__":
    main()
