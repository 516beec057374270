"""`callsheet bench planner`: how long planning rounds take."""

from __future__ import annotations

from typing import Annotated

import typer
from callsheet.cli.errors import CommandError, load
from callsheet.cli.options import AsJson
from callsheet.cli.output import print_json, print_report, progress_on_stderr


def planner(
    *,
    queued: Annotated[str, typer.Option(help="Lengths of the queue, with commas.")] = "1000,10000,100000,1000000",
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the fleet.")] = 3_000,
    pools: Annotated[int, typer.Option(min=1, max=8, help="Pools they make.")] = 8,
    classes: Annotated[int, typer.Option(min=1, help="Classes of the queued actions.")] = 50,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds measured for each length.")] = 200,
    solver_ms: Annotated[float, typer.Option("--solver-ms", min=0.0, help="The budget for solving a round.")] = 8.0,
    seed: Annotated[int, typer.Option(min=0, help="Everything is drawn from it.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Measure planning rounds on a large fleet with a long queue: a real core, no network and no journal."""
    settings_module = load("callsheet.benchmarks.planner.settings", "bench")
    runner = load("callsheet.benchmarks.planner.run", "bench")
    try:
        settings = settings_module.PlannerBenchSettings(
            queued=_lengths(queued),
            nodes=nodes,
            pools=pools,
            classes=classes,
            rounds=rounds,
            solver_s=solver_ms / 1000.0,
            seed=seed,
        )
    except ValueError as error:
        raise CommandError(str(error), usage=True) from error
    with progress_on_stderr() as progress:
        report = runner.run_planner_bench(settings, progress)
    if as_json:
        print_json(report.as_json())
    else:
        print_report(load("callsheet.benchmarks.planner.render", "bench").render(report))


def _lengths(queued: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in queued.split(","))
    except ValueError as error:
        raise CommandError(f"queued: {queued!r} must be whole numbers with commas between them", usage=True) from error
