"""A comparison as tables for people."""

from __future__ import annotations

from collections.abc import Sequence

from callsheet.benchmarks.measuring.tables import new_table
from callsheet.benchmarks.simulator.comparison.figures import NO_ACTIONS, PolicyResult
from callsheet.benchmarks.simulator.comparison.report import ComparisonReport
from rich.console import Group, RenderableType
from rich.table import Table

_COLUMNS = (
    ("ACT with start", "act_with_start_mean_s", ".3f"),
    ("ACT mean", "act_mean_s", ".3f"),
    ("p50", "act_p50_s", ".3f"),
    ("p99", "act_p99_s", ".2f"),
    ("p99.9", "act_p999_s", ".1f"),
    ("longest wait", "wait_max_s", ".1f"),
    ("start wait", "start_wait_mean_s", ".1f"),
    ("step", "step_s", ".0f"),
    ("trajectories/h", "trajectories_per_hour", ".0f"),
    ("held", "held", ".1%"),
    ("used", "used", ".1%"),
    ("GPUs held", "gpu_held", ".1%"),
    ("GPUs used", "gpu_used", ".1%"),
)


def render(report: ComparisonReport) -> RenderableType:
    """The policies, the bounds, and what else was run."""
    source, load = report.settings.source, report.load
    what = (
        f"{source.workload}, {source.mode.value}: {load.live} trajectories, {report.cores} cores, rho {load.rho:.2f}, "
        f"seeds {', '.join(map(str, report.settings.seeds))} (times in s, means over seeds)"
    )
    parts: list[RenderableType] = [_figures(what, list(report.applying.values()), report)]
    absent = [name for name, result in report.results.items() if result is None]
    if absent:
        parts.append(f"do not apply to this workload: {', '.join(absent)}")
    if len(report.jobs) > 1:
        parts.append(_by_job(report))
    if report.ablations:
        parts.append(_figures("callsheet without one of its pieces", list(report.ablations.values()), report))
    if report.equal_act is not None:
        equal = report.equal_act
        parts.append(
            f"equal mean and p99 ACT: callsheet on {equal.cores} cores, {equal.against} on {equal.against_cores}: "
            f"{equal.saved:.1%} fewer"
        )
    parts.append(f"simulated in {report.wall_s:.0f} s")
    return Group(*parts)


def _figures(title: str, results: Sequence[PolicyResult], report: ComparisonReport) -> Table:
    means = [result.mean() for result in results]
    shown = [column for column in _COLUMNS if any(getattr(figures, column[1]) is not None for figures in means)]
    table = new_table(title, "policy", *(f">{heading}" for heading, _, _ in shown))
    for result, figures in zip(results, means, strict=True):
        cells = [_cell(getattr(figures, figure), form) for _, figure, form in shown]
        table.add_row(result.name, *cells, style="bold" if result.name == "callsheet" else None)
    if report.bounds and results and results[0].name in report.results:
        table.add_section()
        bounded = ("act_mean_s", "step_s", "trajectories_per_hour")
        bounds = [_cell(report.bounds[figure] if figure in bounded else None, form) for _, figure, form in shown]
        table.add_row("bounds", *bounds, style="dim")
    return table


def _by_job(report: ComparisonReport) -> Table:
    headings = (f">{job.name} ({job.priority.name.lower()}, weight {job.weight:g})" for job in report.jobs)
    table = new_table("ACT by job: mean / p99", "policy", *headings)
    for name, result in report.applying.items():
        figures = result.jobs()
        cells = [figures.get(job.name, NO_ACTIONS) for job in report.jobs]
        table.add_row(name, *(f"{_cell(each.act_mean_s, '.3f')} / {_cell(each.act_p99_s, '.2f')}" for each in cells))
    return table


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
