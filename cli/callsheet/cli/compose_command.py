"""`callsheet compose-setup` and `certificates`: what a deployment needs before its first start."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer
from callsheet.cli.output import CommandError, needs, say

Hosts = Annotated[
    list[str],
    typer.Option(help="Name or address by which other machines dial the scheduler; repeatable.", show_default=False),
]


def certificates(
    *,
    host: Hosts,
    directory: Annotated[
        Path,
        typer.Option(help="Directory of the files; made for your user only.", file_okay=False, show_default="this one"),
    ] = Path(),
    name: Annotated[str, typer.Option(help="Name of the server, and of its files.")] = "server",
) -> None:
    """Make an authority, and a server's certificate and key.

    The files are ca.pem, ca.key, server.pem and server.key. Existing files stay. But a certificate that lacks a --host
    is signed again with the host, for the same key. The certificate is for localhost, too.
    """
    with needs("compose"):
        from callsheet.deploy.certificates import LOCAL, write_certificates
    if not re.fullmatch(r"(?!ca$)[a-z0-9]+(-[a-z0-9]+)*", name):
        raise CommandError(f"name: {name!r} must be of small letters, digits and hyphens, and not ca", usage=True)
    try:
        made = write_certificates(directory, {name: (*host, *LOCAL)})
    except ValueError as error:
        raise CommandError(str(error)) from error
    say("".join(f"made {path}\n" for path in made) + f"{directory}: {name}.pem is for {', '.join(host)}", err=True)


def compose_setup(
    *,
    directory: Annotated[
        Path, typer.Option(help="Of docker-compose.yml.", exists=True, file_okay=False, show_default="this one")
    ] = Path(),
    host: Hosts = [],  # noqa: B006 - typer's own kind of default, which nobody changes
) -> None:
    """Make the secrets and the .env of docker-compose.yml.

    Existing files stay. But a certificate that lacks a --host is signed again with the host, for the same key. The
    secrets belong to the user of this command, or to user 10001 if that is root; the containers run as that user.
    """
    with needs("compose"):
        from callsheet.deploy.compose_files import choose_owner, write_compose_files
        from callsheet.deploy.tokens import TokenFileError
    try:
        made = write_compose_files(directory, host, choose_owner(os.geteuid(), os.getegid()))
    except (TokenFileError, ValueError) as error:
        raise CommandError(str(error)) from error
    for path in made:
        say(f"made {path}", err=True)
    say(f"{directory}: all is there that docker-compose.yml needs", err=True)
