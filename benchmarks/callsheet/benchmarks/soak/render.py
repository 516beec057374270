"""A soak's report for people: a table over time, and a verdict."""

from __future__ import annotations

from callsheet.benchmarks.measuring.tables import new_table
from callsheet.benchmarks.soak.bounds import MIB
from callsheet.benchmarks.soak.report import DatabaseSoak, SoakReport
from rich.console import Group, RenderableType


def render(report: SoakReport) -> RenderableType:
    """A table for each database, then whether it was bounded, and by which settings."""
    parts = [part for soak in report.soaks for part in _render_one(soak)]
    said = "[green]bounded by the settings[/]" if report.bounded else "[red]NOT bounded by the settings[/]"
    return Group(*parts, f"Verdict: {said}")


def _render_one(soak: DatabaseSoak) -> list[RenderableType]:
    columns = (">time, s", ">actions", ">forgotten", ">trajectories", ">RSS, MiB", ">directory, MiB", ">database, MiB")
    table = new_table(f"Soak on {soak.database}", *columns)
    for sample in soak.samples:
        sizes = (sample.rss, sample.directory, sample.database)
        numbers = (f"{sample.at_s:.0f}", str(sample.actions), str(sample.forgotten), str(sample.trajectories))
        table.add_row(*numbers, *(f"{size / MIB:.1f}" for size in sizes))
    counts = soak.counts
    done = (
        f"{counts.small} small and {counts.large} large actions, {counts.jobs} lives of jobs, {counts.unread} streams "
        f"never read; resubmits: {counts.again} got their outcome again, {counts.forgotten} were forgotten; "
        f"{counts.trajectories} trajectories of the long job in {counts.groups} groups and alone, of which "
        f"{counts.reopened} were found closed later and {counts.gone} forgotten"
    )
    failed = [f"[red]unexpected, {count} times:[/] {what}" for what, count in counts.failed.items()]
    pairs = soak.limits.environment.items()
    settings = ", ".join(f"{name.removeprefix('CALLSHEET_').lower()} {value}" for name, value in pairs)
    answers = [f"[{'green' if each.met else 'red'}]{each.sentence}[/]" for each in soak.findings]
    return [table, done, *failed, *answers, f"settings: {settings}", ""]
