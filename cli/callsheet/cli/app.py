"""The `callsheet` command as a whole. Heavy rooms are imported inside the commands, so that `--help` is quick."""

from __future__ import annotations

from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from callsheet.cli.bench_command import bench_app
from callsheet.cli.buffer_command import buffer
from callsheet.cli.compose_command import compose_setup
from callsheet.cli.config_file import ConfiguredGroup
from callsheet.cli.demo_command import demo
from callsheet.cli.eval_command import evaluate
from callsheet.cli.facade_command import facade_app
from callsheet.cli.fleet_commands import fleet_app
from callsheet.cli.gateway_command import gateway
from callsheet.cli.health_command import health
from callsheet.cli.inspect_commands import actions, explain, status, what_if
from callsheet.cli.job_commands import cancel, close, drain, heal, jobs, rollout
from callsheet.cli.log_command import logs
from callsheet.cli.manager_commands import manager_app
from callsheet.cli.output import say
from callsheet.cli.scheduler_command import scheduler
from callsheet.cli.submit_commands import submit_app
from callsheet.cli.token_commands import token_app
from callsheet.cli.up_command import up

app = typer.Typer(
    name="callsheet",
    cls=ConfiguredGroup,
    help="Schedules single actions of agentic-RL trajectories.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"callsheet {metadata.version('callsheet')}")
        raise typer.Exit


@app.callback()
def _callsheet(
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(
            envvar="CALLSHEET_CONFIG",
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="A TOML file with values of options, in a table for each command.",
        ),
    ] = None,
) -> None:
    """Schedules single actions of agentic-RL trajectories."""


for command in (
    up,
    scheduler,
    gateway,
    status,
    explain,
    actions,
    jobs,
    rollout,
    buffer,
    cancel,
    close,
    drain,
    heal,
    logs,
    what_if,
    health,
    demo,
):
    app.command()(command)
app.command("compose-setup")(compose_setup)
app.command("eval")(evaluate)
for name, group in (
    ("manager", manager_app),
    ("facade", facade_app),
    ("fleet", fleet_app),
    ("submit", submit_app),
    ("token", token_app),
    ("bench", bench_app),
):
    app.add_typer(group, name=name)
