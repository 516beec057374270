"""`callsheet manager KIND`: one manager, for machines beside the scheduler's."""

from __future__ import annotations

from typing import Any

import typer
import typer.core
from callsheet.cli.options import options_of
from callsheet.cli.output import needs


class ManagerKinds(typer.core.TyperGroup):
    """A command for each kind of manager that is installed; kinds are loaded when one of them is looked at."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of the kinds."""
        from callsheet.managers.kind import MANAGER_KINDS

        return list(MANAGER_KINDS.names())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of a kind; None if it is not installed."""
        return manager_command(cmd_name) if cmd_name in self.list_commands(ctx) else None


manager_app = typer.Typer(
    cls=ManagerKinds,
    help="Run one manager and register it with a scheduler.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@manager_app.callback()
def _manager() -> None:
    """Run one manager and register it with a scheduler."""


def manager_command(name: str) -> Any:
    """The command that runs a manager of one kind, with the options that the kind declares."""
    from callsheet.deploy.manager_process import ManagerOptions, run_manager_process
    from callsheet.managers.kind import MANAGER_KINDS

    kind = MANAGER_KINDS.get(name)

    @options_of(options=ManagerOptions, settings=kind.settings)
    def run(*, options: Any, settings: Any) -> None:
        with needs(kind.extra):
            run_manager_process(kind, options, settings)

    alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    alone.command(name, help=kind.summary, hidden=kind.hidden)(run)
    return typer.main.get_command(alone)
