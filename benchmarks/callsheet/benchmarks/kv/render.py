"""The benchmark of KV admission for people: a table and a verdict."""

from __future__ import annotations

from callsheet.benchmarks.kv.report import KvBenchReport, PolicyFigures, bound_name
from callsheet.benchmarks.measuring.tables import new_table
from rich.console import Group, RenderableType


def render(report: KvBenchReport) -> RenderableType:
    """A row for each policy at each demand, then what does not hold."""
    counts = (">turns/min", ">tokens/min", ">trajectories/min", ">recomputed a turn")
    columns = (*counts, ">ACT, s", ">p95, s", ">ratio", ">by engine CPU")
    table = new_table(f"KV admission on {report.engine}, {report.kv_tokens:,} tokens", ">demand", "policy", *columns)
    for each in report.demands:
        share = f"{each.throughput_ratio:.2f}"
        by_cpu = f"{each.cpu_ratio:.2f}" if each.cpu_ratio is not None else "-"
        table.add_row(f"{each.demand:g}", "callsheet", *_figures(each.callsheet), share, by_cpu)
        for bound, plain in each.plain.items():
            mark = " (best)" if bound == each.best_bound else ""
            table.add_row("", f"plain, {bound_name(bound)}{mark}", *_figures(plain), "", "")
    timed = f"A prompt of {report.prefill_tokens:,} tokens took {report.prefill_s:.2f} s on the idle engine."
    said = [f"[red]{each}[/]" for each in report.findings] or ["[green]All bars are met.[/]"]
    return Group(table, timed, *said)


def _figures(policy: PolicyFigures) -> tuple[str, ...]:
    counts = (policy.turns_per_min, policy.decoded_per_min, policy.trajectories_per_min)
    return (
        *(f"{each:,.1f}" for each in counts),
        f"{policy.recomputed_per_turn:,.0f}",
        f"{policy.act_mean_s:.2f}",
        f"{policy.act_p95_s:.2f}",
    )
