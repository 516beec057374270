"""`callsheet audit`: who did what to a scheduler."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

import typer
from callsheet.cli.log_command import last_lines, print_line
from callsheet.cli.options import AsJson, DataDir
from callsheet.cli.output import CommandError
from callsheet.cli.token_commands import Tokens

Act = Enum(
    "Act",
    {
        "DRAIN": "drain",
        "HEAL": "heal",
        "CLOSE": "close",
        "CANCEL": "cancel",
        "PUBLISH": "publish",
        "ISSUE": "issue",
        "REVOKE": "revoke",
    },
)


def audit(
    *,
    act: Annotated[Act | None, typer.Option(help="Only these.", show_default="all")] = None,
    job: Annotated[str, typer.Option(help="Only acts on this job, or by its token.")] = "",
    token: Annotated[str, typer.Option(help="Only acts by or on the token of this id.")] = "",
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="The most entries, the newest ones.")] = 100,
    data_dir: DataDir,
    tokens: Tokens,
    as_json: AsJson = False,
) -> None:
    """Show changes with their callers, addresses and results.

    It reads DATA_DIR/audit.jsonl and the file beside the tokens, so it runs on the scheduler's machine as their user.
    The oldest line comes first. With --json each line is the object in the file.
    """
    named = {"scheduler": data_dir / "audit.jsonl", "tokens": tokens.with_suffix(".audit.jsonl")}
    former = {f"{name}, earlier": path.with_name(f"{path.name}.1") for name, path in named.items()}
    files = {name: path for name, path in (former | named).items() if path.exists()}
    if not files:
        raise CommandError(f"data-dir: {data_dir} has no audit; its scheduler was asked for no act", code="NOT_FOUND")
    ids = [each for each in (act and act.value, job, token) if each]
    for name, line in last_lines(files, {path: path.stat().st_size for path in files.values()}, ids, lines):
        print_line(name.partition(",")[0], line, as_json)
