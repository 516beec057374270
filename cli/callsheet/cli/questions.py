"""Asks a scheduler the questions of commands, and prints its answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from callsheet.client.admin import AdminClient
    from callsheet.client.settings import ClientOptions

T = TypeVar("T")


def connection_options(**options: float) -> ClientOptions:
    """The token and the files of TLS that the environment names, with other options."""
    import os
    from dataclasses import replace

    from callsheet.client.session.target import from_environment

    return replace(from_environment(os.environ)[1], **options)  # type: ignore[arg-type]


def ask(scheduler: str, question: Callable[[AdminClient], Awaitable[T]]) -> T:
    """Asks one thing of the scheduler at an address."""
    import anyio
    from callsheet.client.admin import AdminClient

    async def answer() -> T:
        async with AdminClient(scheduler, connection_options()) as admin:
            return await question(admin)

    return anyio.run(answer)


def show(found: T, as_json: bool, for_people: Callable[[T], None]) -> None:
    """Prints what was found: as one JSON object, or for people."""
    from callsheet.cli.output import print_json
    from callsheet.cli.plain import to_plain

    if as_json:
        print_json(to_plain(found))
    else:
        for_people(found)
