"""The benchmark of groups for people: a table and a verdict."""

from __future__ import annotations

from callsheet.benchmarks.groups.report import GroupsReport
from callsheet.benchmarks.measuring.tables import new_table
from rich.console import Group, RenderableType


def render(report: GroupsReport) -> RenderableType:
    """A row for each way to run groups, the killed trainers, then what does not hold."""
    table = new_table(
        "Time per batch", "groups", ">without faults, s", ">with faults, s", ">ratio", ">hung", ">crashed"
    )
    for each in (report.quorum, report.without_quorum):
        means = [sum(times) / len(times) for times in (each.without_faults_s, each.with_faults_s)]
        figures = (f"{means[0]:.2f}", f"{means[1]:.2f}", f"{each.ratio:.2f}", str(each.hung), str(each.crashed))
        table.add_row(each.name, *figures)
    killed = report.killed
    said = f"{killed.kills} trainers killed with a batch in hand: {killed.finished} trajectories, each trained on once"
    well = f"[green]{said}[/]"
    return Group(table, *([f"[red]{each}[/]" for each in report.findings] or [well]))
