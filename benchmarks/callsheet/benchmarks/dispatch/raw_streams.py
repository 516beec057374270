"""The latency of grpc.aio alone on this machine, over two hops."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
import grpc
import grpc.aio
from callsheet.benchmarks.dispatch import raw_server
from callsheet.benchmarks.dispatch.raw_server import CHANNEL_OPTIONS, open_stream
from callsheet.benchmarks.measuring.clock import latencies_s
from callsheet.managers.supervision.processes import ProcessSpec, run_process

_MODULE = raw_server.__name__
_DEADLINE_S = 120.0


@dataclass(slots=True)
class RawServers:
    """Channels to an echo process, and to a relay process that passes everything on to the echo process."""

    echo: grpc.aio.Channel
    relay: grpc.aio.Channel


@asynccontextmanager
async def raw_servers() -> AsyncIterator[RawServers]:
    """Runs the echo and the relay process for the length of a `with` block."""
    async with (
        run_process(ProcessSpec("echo", _MODULE)) as echo,
        run_process(ProcessSpec("relay", _MODULE, ("--upstream", echo.facts["address"]))) as relay,
        grpc.aio.insecure_channel(echo.facts["address"], options=CHANNEL_OPTIONS) as to_echo,
        grpc.aio.insecure_channel(relay.facts["address"], options=CHANNEL_OPTIONS) as to_relay,
    ):
        yield RawServers(to_echo, to_relay)


async def two_hops_latencies(servers: RawServers, message: bytes, samples: int, warm_up: int) -> list[float]:
    """Seconds of each round trip client → relay → echo → relay → client, one message in flight.

    Args:
        servers: The running processes.
        message: Sent every time.
        samples: Round trips to measure.
        warm_up: Round trips before them.
    """
    stream = open_stream(servers.relay)

    async def round_trip() -> None:
        await stream.write(message)
        await stream.read()

    latencies = await latencies_s(round_trip, samples, warm_up)
    with anyio.fail_after(_DEADLINE_S):
        await stream.done_writing()
        await stream.read()
    return latencies
