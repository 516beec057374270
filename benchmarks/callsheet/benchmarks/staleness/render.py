"""The benchmark of staleness policies for people: a table and a verdict."""

from __future__ import annotations

from callsheet.benchmarks.measuring.tables import new_table
from callsheet.benchmarks.staleness.report import StalenessReport
from rich.console import Group, RenderableType


def render(report: StalenessReport) -> RenderableType:
    """A row for each policy, then what does not hold."""
    columns = (">versions", ">trained on", ">dropped", ">evicted", ">worst staleness", ">trainer waits", "by length")
    table = new_table("Staleness policies", "policy", *columns)
    for run in report.runs:
        shares = ", ".join(f"{each.trained:.0%} to {each.up_to_min:.0f} min" for each in run.quantiles)
        table.add_row(
            run.name,
            str(run.versions),
            str(run.counts.get("trained", 0)),
            str(run.counts.get("stale", 0)),
            str(run.counts.get("evicted", 0)),
            str(max(run.staleness, default=0)),
            f"{run.trainer_waits:.0%}",
            shares,
        )
    well = "[green]What paces trains on every length, and nothing passes its bound.[/]"
    return Group(table, *([f"[red]{each}[/]" for each in report.findings] or [well]))
