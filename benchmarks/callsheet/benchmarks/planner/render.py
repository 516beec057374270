"""The planner benchmark's report as a table for people."""

from __future__ import annotations

from callsheet.benchmarks.measuring.tables import new_table, verdict
from callsheet.benchmarks.planner.report import ROUND_P99_TARGET_MS, PlannerBenchReport
from rich.table import Table


def render(report: PlannerBenchReport) -> Table:
    """A row for each length of the queue."""
    title = f"Planning rounds: {report.rounds} each, solver {1000 * report.solver_s:g} ms, seed {report.seed}"
    columns = ("queued", "nodes", "pools", "classes", "p50 ms", "p99 ms", "CPU p50", "CPU p99", "gap", "starts")
    table = new_table(title, *(f">{column}" for column in columns), f"p99 ≤ {ROUND_P99_TARGET_MS:g} ms")
    for each in report.results:
        table.add_row(
            f"{each.queued:,}",
            f"{each.nodes:,}",
            str(each.pools),
            str(each.classes),
            f"{each.round_p50_ms:.1f}",
            f"{each.round_p99_ms:.1f}",
            f"{each.round_cpu_p50_ms:.1f}",
            f"{each.round_cpu_p99_ms:.1f}",
            f"{each.gap:.1e}",
            f"{each.starts_per_round:.0f}",
            verdict(each.met),
        )
    return table
