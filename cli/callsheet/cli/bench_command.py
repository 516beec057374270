"""`callsheet bench`: benchmarks, which are imported when one of them is looked at."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
import typer.core


class Benchmarks(typer.core.TyperGroup):
    """The benchmarks by name."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names."""
        return list(_benchmarks())

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of one; None if there is none of the name."""
        return _benchmarks().get(cmd_name)


bench_app = typer.Typer(cls=Benchmarks, help="Run a benchmark.", no_args_is_help=True, rich_markup_mode=None)


@bench_app.callback()
def _bench() -> None:
    """Run a benchmark."""


def _benchmarks() -> Mapping[str, Any]:
    from callsheet.cli.bench_commands import dispatch, real, sandbox, sim

    loaded = typer.Typer(rich_markup_mode=None)
    for command in (dispatch, real, sandbox, sim):
        loaded.command()(command)
    return typer.main.get_group(loaded).commands
