"""`callsheet compose-setup`: what docker-compose.yml needs before its first start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from callsheet.cli.output import CommandError, needs, say


def compose_setup(
    *,
    directory: Annotated[
        Path, typer.Option(help="Of docker-compose.yml.", exists=True, file_okay=False, show_default="this one")
    ] = Path(),
    host: Annotated[
        list[str] | None,
        typer.Option(
            help="Name or address by which other machines dial the scheduler; repeatable.", show_default=False
        ),
    ] = None,
) -> None:
    """Make the secrets and the .env of docker-compose.yml.

    What is there stays as it is. The secrets are for the user who runs this, or for user 10001 if that is root; the
    containers run as that user.
    """
    with needs("compose"):
        from callsheet.deploy.compose_files import choose_owner, write_compose_files
        from callsheet.deploy.tokens import TokenFileError
    try:
        made = write_compose_files(directory, host or [], choose_owner(os.geteuid(), os.getegid()))
    except (TokenFileError, ValueError) as error:
        raise CommandError(str(error)) from error
    for path in made:
        say(f"made {path}", err=True)
    say(f"{directory}: all is there that docker-compose.yml needs", err=True)
