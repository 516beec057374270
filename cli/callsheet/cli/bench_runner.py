"""How the command line runs a benchmark: its settings as options, progress, the report, and the exit code."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import typer
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import CommandError, needs, print_json, print_report, progress_on_stderr, say
from callsheet.options.common import LogFormat, LogLevel

if TYPE_CHECKING:
    from callsheet.benchmarks.measuring.clock import Progress
    from callsheet.benchmarks.runner import BenchmarkReport

SettingsT = TypeVar("SettingsT")
Run = Callable[[SettingsT, "Progress"], "BenchmarkReport | Awaitable[BenchmarkReport]"]


def benchmark(
    settings_type: type[SettingsT], extra: str = "bench"
) -> Callable[[Callable[[SettingsT], Run[SettingsT]]], Callable[..., None]]:
    """Decorates what imports a benchmark and returns the function that runs it: makes a command of that.

    Args:
        settings_type: Declares the command's options.
        extra: Installs what the benchmark imports.
    """

    def decorate(load: Callable[[SettingsT], Run[SettingsT]]) -> Callable[..., None]:
        def command(*, settings: Any, as_json: AsJson = False) -> None:
            with needs(extra):
                run = load(settings)
            run_benchmark(partial(run, settings), as_json)

        command.__name__, command.__doc__ = load.__name__, load.__doc__
        return options_of(settings=settings_type)(command)

    return decorate


def run_benchmark(run: Callable[[Progress], BenchmarkReport | Awaitable[BenchmarkReport]], as_json: bool) -> None:
    """Runs a benchmark and prints its report; ends with exit code 1 where that misses a bar.

    Raises:
        CommandError: The settings do not fit this machine, or a file cannot be read.
    """
    from callsheet.benchmarks.runner import render
    from callsheet.deploy.logs import configure_logs

    configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    try:
        with progress_on_stderr() as progress:
            report: Any = anyio.run(run, progress) if inspect.iscoroutinefunction(run) else run(progress)
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    if as_json:
        print_json(report.as_json())
    else:
        print_report(render(report))
    missed = [bar for bar in report.bars if not bar.met]
    for bar in missed:
        say(f"callsheet: missed: {bar}", err=True)
    if missed:
        raise typer.Exit(1)
