"""`callsheet bench sandbox`: what sandboxes cost."""

from __future__ import annotations

from typing import Annotated

import typer
from callsheet.cli.errors import CommandError, load
from callsheet.cli.options import AsJson, IsolationOption
from callsheet.cli.output import print_json, print_report, progress_on_stderr
from callsheet.deploy.choices import Isolation, LogFormat, LogLevel

_BENCH = "callsheet.benchmarks.sandbox"


def sandbox(
    *,
    sandboxes: Annotated[str, typer.Option(help="Numbers of live sandboxes, with commas.")] = "1,100,500",
    isolation: IsolationOption = Isolation.BUBBLEWRAP,
    samples: Annotated[int, typer.Option(min=1, help="Of everything that takes milliseconds.")] = 50,
    long_actions: Annotated[
        int, typer.Option("--long-actions", min=1, help="Commands of one second, one after another.")
    ] = 7,
    competitors: Annotated[int, typer.Option(min=1, help="Commands that come while a wide one has all cores.")] = 20,
    memory_mib: Annotated[int, typer.Option("--memory-mib", min=1, help="Limit of each sandbox.")] = 32,
    as_json: AsJson = False,
) -> None:
    """Measure sandboxes while others live: made, reset, used, moved and frozen, beside the bare tool doing the same."""
    import anyio

    settings_module = load(f"{_BENCH}.settings", "bench")
    runner = load(f"{_BENCH}.run", "bench")
    isolations = load("callsheet.managers.sandbox.settings", "bench").Isolation
    load("callsheet.deploy.logs", "bench").configure_logs(LogFormat.CONSOLE, LogLevel.WARNING)
    try:
        settings = settings_module.SandboxBenchSettings(
            sandboxes=_numbers(sandboxes),
            isolation=isolations(isolation.value),
            samples=samples,
            long_actions=long_actions,
            competitors=competitors,
            memory_mib=memory_mib,
        )
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    with progress_on_stderr() as progress:
        report = anyio.run(runner.run_sandbox_bench, settings, progress)
    if as_json:
        print_json(report.as_json())
    else:
        print_report(load(f"{_BENCH}.render", "bench").render(report))


def _numbers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(","))
    except ValueError as error:
        raise CommandError(f"sandboxes: {text!r} must be whole numbers with commas between them", usage=True) from error
