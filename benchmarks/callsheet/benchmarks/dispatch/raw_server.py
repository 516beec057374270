"""A bare gRPC stream server in its own process: echoes bytes, or relays them to another such server and back.

It is what grpc.aio alone costs: no message classes, no scheduling, no journal.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio
from callsheet.deploy.child import ParentLink

SERVICE = "callsheet.benchmarks.Raw"
METHOD = "Exchange"
MAX_MESSAGE_BYTES = 4 * 1024 * 1024
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
)
_STOP_GRACE_S = 1.0

_Context = grpc.aio.ServicerContext[bytes, bytes]
_Handler = Callable[[object, _Context], Awaitable[None]]


async def _echo(_: object, context: _Context) -> None:
    while True:
        message = await context.read()
        if not isinstance(message, bytes):
            return
        await context.write(message)


def _relay_to(channel: grpc.aio.Channel) -> _Handler:
    async def relay(_: object, context: _Context) -> None:
        upstream = open_stream(channel)
        while True:
            message = await context.read()
            if not isinstance(message, bytes):
                break
            await upstream.write(message)
            answer = await upstream.read()
            if not isinstance(answer, bytes):
                break
            await context.write(answer)
        await upstream.done_writing()

    return relay


def open_stream(channel: grpc.aio.Channel) -> grpc.aio.StreamStreamCall[bytes, bytes]:
    """Opens one bidirectional stream of byte messages on a channel to a raw server."""
    call: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
    return call


async def serve(upstream: str | None, link: ParentLink) -> None:
    """Serves on a free loopback port until SIGTERM or SIGINT; reports its address to the parent.

    Args:
        upstream: Address of the server to relay to; None echoes.
        link: The parent to report to.
    """
    channel = grpc.aio.insecure_channel(upstream, options=CHANNEL_OPTIONS) if upstream else None
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
        _relay_to(channel) if channel else _echo
    )
    server = grpc.aio.server(options=CHANNEL_OPTIONS)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    link.report_ready(address=f"127.0.0.1:{port}")
    await stopped.wait()
    await server.stop(_STOP_GRACE_S)
    if channel is not None:
        await channel.close()


def main() -> None:
    """Entry point of the server's process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", default=None)
    arguments = parser.parse_args()
    asyncio.run(serve(arguments.upstream, ParentLink.adopt()))


if __name__ == "__main__":
    main()
