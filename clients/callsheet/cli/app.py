"""The `callsheet` command as a whole. Heavy rooms are imported inside the commands, so that `--help` is quick."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer
from callsheet.cli import (
    bench_command,
    demo_command,
    facade_command,
    inspect_commands,
    job_commands,
    log_command,
    manager_commands,
    scheduler_command,
    submit_commands,
    up_command,
)
from callsheet.cli.errors import CallsheetGroup

app = typer.Typer(
    name="callsheet",
    cls=CallsheetGroup,
    help="Schedules single actions of agentic-RL trajectories.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"callsheet {metadata.version('callsheet')}")
        raise typer.Exit


@app.callback()
def _callsheet(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Schedules single actions of agentic-RL trajectories."""


app.command("up")(up_command.up)
app.command("scheduler")(scheduler_command.scheduler)
app.add_typer(manager_commands.manager_app, name="manager")
app.add_typer(facade_command.facade_app, name="facade")
app.add_typer(submit_commands.submit_app, name="submit")
app.command("status")(inspect_commands.status)
app.command("explain")(inspect_commands.explain)
app.command("jobs")(job_commands.jobs)
app.command("cancel")(job_commands.cancel)
app.command("close")(job_commands.close)
app.command("drain")(job_commands.drain)
app.command("logs")(log_command.logs)
app.command("predictions")(inspect_commands.predictions)
app.command("what-if")(inspect_commands.what_if)
app.command("demo")(demo_command.demo)
app.add_typer(bench_command.bench_app, name="bench")
