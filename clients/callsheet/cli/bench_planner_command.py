"""`callsheet bench planner`: how long planning rounds take."""

from __future__ import annotations

from callsheet.benchmarks.planner.settings import PlannerBenchSettings
from callsheet.cli.errors import needs
from callsheet.cli.options import AsJson, options_of
from callsheet.cli.output import print_either, progress_on_stderr


@options_of(settings=PlannerBenchSettings)
def planner(*, settings: PlannerBenchSettings, as_json: AsJson = False) -> None:
    """Measure planning rounds on a large fleet with a long queue.

    The core is real; there is no network and no journal.
    """
    with needs("bench"):
        from callsheet.benchmarks.planner.render import render
        from callsheet.benchmarks.planner.run import run_planner_bench
    with progress_on_stderr() as progress:
        report = run_planner_bench(settings, progress)
    print_either(as_json, report.as_json, lambda: render(report))
