"""The `callsheet` command as a whole. Each command is imported when it is looked at, so that it starts quickly."""

from __future__ import annotations

import importlib
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import typer.main
from callsheet.cli.config_file import ConfiguredGroup
from callsheet.cli.output import say

# Where each command is, in the order of the help.
_PLACES: Final = {
    "up": "up_command:up",
    "scheduler": "server_commands:scheduler",
    "gateway": "server_commands:gateway",
    "dashboard": "server_commands:dashboard",
    "status": "inspect_commands:status",
    "top": "top_command:top",
    "explain": "inspect_commands:explain",
    "actions": "inspect_commands:actions",
    "trace": "trace_command:trace",
    "jobs": "job_commands:jobs",
    "rollout": "job_commands:rollout",
    "buffer": "job_commands:buffer",
    "cancel": "job_commands:cancel",
    "close": "job_commands:close",
    "drain": "job_commands:drain",
    "heal": "job_commands:heal",
    "record": "record_command:record",
    "logs": "log_command:logs",
    "audit": "audit_command:audit",
    "what-if": "inspect_commands:what_if",
    "health": "health_command:health",
    "demo": "demo_command:demo",
    "certificates": "compose_command:certificates",
    "compose-setup": "compose_command:compose_setup",
    "eval": "eval_command:evaluate",
    "config": "config_command:config_app",
    "manager": "manager_commands:manager_app",
    "facade": "server_commands:facade_app",
    "fleet": "fleet_commands:fleet_app",
    "submit": "submit_commands:submit_app",
    "token": "token_commands:token_app",
    "journal": "journal_command:journal_app",
    "bench": "bench_command:bench_app",
}


class _Commands(ConfiguredGroup):
    """All commands by name."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return list(_PLACES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a name; for another name None, once all commands are there to be suggested."""
        for name in [cmd_name] if cmd_name in _PLACES else _PLACES:
            if name not in self.commands:
                self.commands[name] = _load(name)
        return self.commands.get(cmd_name)


def _load(name: str) -> Any:
    module, _, attribute = _PLACES[name].partition(":")
    found = getattr(importlib.import_module(f"callsheet.cli.{module}"), attribute)
    alone = typer.Typer(rich_markup_mode=None)
    if isinstance(found, typer.Typer):
        alone.add_typer(found, name=name)
    else:
        alone.command(name)(found)
    return typer.main.get_group(alone).commands[name]


app = typer.Typer(
    name="callsheet",
    cls=_Commands,
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
