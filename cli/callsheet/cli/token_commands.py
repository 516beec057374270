"""`callsheet token ...`: who may call a scheduler that asks for tokens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from callsheet.cli.options import AsJson
from callsheet.cli.output import CommandError, needs, print_json, print_table, say
from callsheet.options.common import default_data_dir

T = TypeVar("T")
token_app = typer.Typer(
    help="Issue, revoke and list tokens, beside a running scheduler.", no_args_is_help=True, rich_markup_mode=None
)
Tokens = Annotated[
    Path,
    typer.Option(
        "--tokens",
        help="The scheduler's file of tokens. It has hashes only.",
        envvar="CALLSHEET_TOKENS",
        default_factory=lambda: default_data_dir() / "tokens.json",
        show_default="tokens.json in the data directory",
        dir_okay=False,
    ),
]


@token_app.command("issue")
def issue(
    scope: Annotated[str, typer.Argument(help="admin, read-only, job, manager or gateway.", show_default=False)],
    subject: Annotated[str, typer.Argument(metavar="[ID]", help="Of the job or manager.", show_default=False)] = "",
    *,
    lifetime: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Seconds for which it is valid.", show_default="until it is revoked"),
    ] = None,
    publishes: Annotated[
        list[str] | None,
        typer.Option(metavar="SERVICE", help="A service whose engines take weights from this job only; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="File to write it to, readable for its owner only: a new file, or one with a token.",
            dir_okay=False,
            show_default="standard output",
        ),
    ] = None,
    tokens: Tokens,
) -> None:
    """Make a token, and print it or write it to a file. Callsheet stores no other copy."""
    with needs("scheduler"):
        from callsheet.deploy import tokens as kept
    token = _done(lambda: kept.issue(tokens, scope, subject, lifetime, publishes or (), out=out))
    if out is None:
        say(token)


@token_app.command("revoke")
def revoke(
    token_id: Annotated[str, typer.Argument(metavar="ID", help="Its public part; list shows it.", show_default=False)],
    *,
    tokens: Tokens,
) -> None:
    """End a token. Streams that were opened with it end within seconds."""
    with needs("scheduler"):
        from callsheet.deploy import tokens as kept
    _done(lambda: kept.revoke(tokens, token_id))
    say(f"revoked token {token_id}", err=True)


@token_app.command("list")
def list_tokens(*, tokens: Tokens, as_json: AsJson = False) -> None:
    """List the tokens that were issued."""
    with needs("scheduler"):
        from callsheet.deploy import tokens as kept
    found = _done(lambda: kept.listed(tokens))
    if as_json:
        from callsheet.cli.plain import to_plain

        shown = ({name: value for name, value in to_plain(each).items() if name != "digest"} for each in found)
        print_json({"tokens": list(shown)})
        return
    rows = [
        [
            each.token_id,
            each.scope.value,
            each.subject,
            ", ".join(each.publishes),
            _life(each.expires_at, each.revoked_at),
        ]
        for each in found
    ]
    print_table("Tokens", ["id", "scope", "for", "publishes", "life"], rows)


def _life(expires_at: float | None, revoked_at: float | None) -> str:
    from datetime import UTC, datetime

    if revoked_at is not None:
        return f"revoked {datetime.fromtimestamp(revoked_at, UTC):%Y-%m-%d %H:%M} UTC"
    return "" if expires_at is None else f"until {datetime.fromtimestamp(expires_at, UTC):%Y-%m-%d %H:%M} UTC"


def _done(work: Callable[[], T]) -> T:
    from callsheet.deploy.tokens import TokenFileError

    try:
        return work()
    except (ValueError, LookupError) as error:
        raise CommandError(str(error.args[0]), usage=True) from error
    except TokenFileError as error:
        raise CommandError(str(error)) from error
