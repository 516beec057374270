"""`callsheet journal ...`: the journal of a scheduler that is stopped."""

from __future__ import annotations

from typing import Annotated

import typer
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import CommandError, needs, print_json, say
from callsheet.deploy import stopped_journal

journal_app = typer.Typer(
    help="Look after the journal of a scheduler that is stopped.", no_args_is_help=True, rich_markup_mode=None
)


@journal_app.callback()
def _journal() -> None:
    """Look after the journal of a scheduler that is stopped."""


@journal_app.command("migrate")
@options_of(place=stopped_journal.JournalPlace)
def migrate(
    *,
    place: stopped_journal.JournalPlace,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the steps, and change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Bring a journal to the schema of this version.

    A scheduler does the same when it starts. Stop the scheduler and back the journal up first: no step goes back. All
    steps are one transaction, so a journal has the earlier schema or this version's, and nothing between.
    """
    try:
        with needs("scheduler"):
            steps = stopped_journal.migrate(place, dry_run=dry_run)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if as_json:
        print_json({"dry_run": dry_run, "steps": [step._asdict() for step in steps]})
    elif not steps:
        say("the journal has the schema of this version: there is nothing to do")
    else:
        did = "would migrate" if dry_run else "migrated"
        say(f"{did} the journal from {steps[0].before} to {steps[-1].after}")
        for step in steps:
            say(f"  {step.before} to {step.after}: {step.does} Rows: {step.rows}")
