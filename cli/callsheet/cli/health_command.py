"""`callsheet health`: whether a scheduler, a gateway or a manager is well, for what watches over processes."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from callsheet.cli.options import Address
from callsheet.cli.output import CommandError, say
from callsheet.options.common import DEFAULT_ADDRESS

_TIMEOUT_S = 5.0
# The standard health service of gRPC: its request for the whole server is empty, and field 1 of its answer is 1.
_CHECK = "/grpc.health.v1.Health/Check"
_SERVING = b"\x08\x01"


def health(
    *,
    scheduler: Address = DEFAULT_ADDRESS,
    file: Annotated[
        Path | None,
        typer.Option(
            help="The --health-file of a manager on this machine; ask it instead of the scheduler.", show_default="none"
        ),
    ] = None,
    gateway: Annotated[
        str | None,
        typer.Option(metavar="URL", help="A gateway; ask it instead of the scheduler.", show_default="none"),
    ] = None,
    within: Annotated[float, typer.Option(metavar="SECONDS", help="How old the file may be.", min=0.1)] = 20.0,
) -> None:
    """Exit with 0 if a process of Callsheet is healthy.

    Otherwise it exits with 1. The process is a scheduler, a gateway or a manager.

    It takes no token.
    """
    if gateway is not None:
        _ask_gateway(gateway)
    elif file is None:
        _ask(scheduler)
    else:
        _look_at(file, within, time.time())


def _look_at(file: Path, within_s: float, now: float) -> None:
    try:
        age_s = now - file.stat().st_mtime
    except FileNotFoundError:
        raise CommandError(f"{file}: not there: the manager is not registered", code="UNAVAILABLE") from None
    if age_s > within_s:
        raise CommandError(
            f"{file}: {age_s:.0f} s old, more than {within_s:g} s: the manager does not answer", code="UNAVAILABLE"
        )
    say("registered")


def _ask_gateway(url: str) -> None:
    from callsheet.client.gateway import is_serving
    from callsheet.client.session.target import from_environment

    options = replace(from_environment(os.environ)[1], gateway=url, call_timeout_s=_TIMEOUT_S)
    if not is_serving(options):
        raise CommandError(f"{url}: the gateway does not serve", code="UNAVAILABLE")
    say("serving")


def _ask(scheduler: str) -> None:
    import anyio
    import grpc
    import grpc.aio
    from callsheet.client.session.target import from_environment

    async def check() -> bytes:
        credentials = from_environment(os.environ)[1].credentials
        async with credentials.open_channel(scheduler, ()) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(_CHECK)
            return await call(b"", timeout=_TIMEOUT_S, wait_for_ready=True)

    try:
        answer = anyio.run(check)
    except grpc.aio.AioRpcError as error:
        raise CommandError(f"{scheduler}: {error.code().name}: {error.details()}", code=error.code().name) from error
    if answer != _SERVING:
        raise CommandError(f"{scheduler}: the scheduler does not serve", code="UNAVAILABLE")
    say("serving")
