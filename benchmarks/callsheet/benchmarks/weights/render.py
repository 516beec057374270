"""The benchmark of policy versions for people: two tables and a verdict."""

from __future__ import annotations

from callsheet.benchmarks.measuring.tables import new_table
from callsheet.benchmarks.weights.report import WeightsReport
from rich.console import Group, RenderableType


def render(report: WeightsReport) -> RenderableType:
    """A row for each mode and each fault, then what does not hold."""
    columns = (">publishes", ">actions", ">ended early", ">of several versions", ">log-prob error", ">exposed, s", ">s")
    modes = new_table("Updates under load", "mode", *columns)
    for each in report.modes:
        checked = each.checked
        modes.add_row(
            each.mode,
            str(each.published),
            str(checked.actions),
            str(checked.aborted),
            str(checked.crossing),
            f"{checked.largest_error:.1e}",
            ", ".join(f"{exposed:.2f}" for exposed in each.exposed_total_s),
            f"{each.wall_s:.1f}",
        )
    faults = new_table("Updates that go wrong", "what", ">actions", ">log-prob error", "recovered", "quarantined")
    for fault in report.faults:
        checked = fault.checked
        recovered = "yes" if fault.recovered else "NO"
        faults.add_row(
            fault.fault, str(checked.actions), f"{checked.largest_error:.1e}", recovered, fault.quarantined or "-"
        )
    well = "[green]Nothing unproved was served, and no token is lost.[/]"
    said = [f"[red]{each}[/]" for each in report.findings] or [well]
    return Group(modes, faults, *said)
