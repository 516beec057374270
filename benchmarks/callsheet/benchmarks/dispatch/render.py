"""The dispatch report as tables for people."""

from __future__ import annotations

from callsheet.benchmarks.dispatch.report import DispatchReport, Goal
from callsheet.benchmarks.measuring.tables import new_table, verdict
from rich.console import Group, RenderableType
from rich.table import Table


def render(report: DispatchReport) -> RenderableType:
    """The figures, then the targets."""
    return Group(_figures(report), _targets(report.targets()), _machine(report))


def _figures(report: DispatchReport) -> Table:
    ours, raw, ray = report.callsheet, report.raw, report.ray
    table = new_table("No-op dispatch", "what", ">value", "how")
    repetitions = f"median of {report.repetitions}"
    table.add_row(
        "Callsheet",
        f"{ours.actions_per_s:,.0f} actions/s",
        f"{ours.in_flight:,} in flight, {ours.mean_batch_items:.0f} a message, {repetitions}",
    )
    cpu = ", ".join(f"{name} {used:.0f} µs" for name, used in ours.cpu_us_per_action.items())
    table.add_row("Callsheet, CPU", f"{sum(ours.cpu_us_per_action.values()):.0f} µs/action", cpu)
    table.add_row(
        "raw gRPC stream",
        f"{raw.raw_stream_items_per_s:,.0f} items/s",
        f"one hop, {raw.raw_batch_items} a message, {repetitions}",
    )
    table.add_row("Ray tasks", f"{ray.ray_tasks_per_s:,.0f} /s", f"{ray.ray_tasks_window:,} in flight, {repetitions}")
    table.add_row(
        "Ray async actor calls",
        f"{ray.ray_actor_calls_per_s:,.0f} /s",
        f"{ray.ray_actor_window:,} in flight, {repetitions}",
    )
    table.add_row(
        "Callsheet, idle",
        f"{ours.idle_p50_us:,.0f} µs p50, {ours.idle_p99_us:,.0f} µs p99",
        f"one at a time, {ours.idle_samples:,} samples",
    )
    table.add_row(
        "two raw round trips, idle",
        f"{raw.raw_two_hops_p50_us:,.0f} µs p50, {raw.raw_two_hops_p99_us:,.0f} µs p99",
        "client, relay, echo: a process each",
    )
    table.add_row(
        "burst",
        f"{ours.burst_refused} refused",
        f"{ours.burst_actions:,} submitted at once, all done after {ours.burst_s:.2f} s",
    )
    return table


def _targets(targets: list[Goal]) -> Table:
    table = new_table("Targets", "what", ">measured", ">target", "")
    for target in targets:
        bound = f"{'≤' if target.at_most else '≥'} {target.bound:g}"
        table.add_row(target.name, f"{target.value:.2f}", bound, verdict(target.met))
    return table


def _machine(report: DispatchReport) -> str:
    machine = report.machine
    return (
        f"{machine['cores']} cores, {machine['processor']}, Python {machine['python']}, Ray {report.ray.ray_version}, "
        f"journal on {machine['journal_filesystem']} (fsync {machine['fsync_p50_us']:.0f} µs); "
        f"seed {report.seed}, {report.wall_s:.0f} s in all"
    )
