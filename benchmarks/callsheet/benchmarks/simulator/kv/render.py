"""A comparison of KV policies for people."""

from __future__ import annotations

from statistics import fmean

from callsheet.benchmarks.measuring.tables import new_table
from callsheet.benchmarks.simulator.kv.families import OURS, RIVALS
from callsheet.benchmarks.simulator.kv.report import KvPoint, KvReport
from rich.console import Group, RenderableType


def render(report: KvReport) -> RenderableType:
    """A row for each point, then the bars that are missed."""
    ratios = [f">by {rival}" for rival in RIVALS]
    columns = (">demand", ">prefill", ">live", ">turns/h", ">bound", ">repeated", ">longest, s", *ratios)
    points = new_table("Throughput by that of each rival at its best settings", "shape", *columns)
    for point in report.points:
        points.add_row(*_row(point))
    met = sum(bar.met for bar in report.bars)
    return Group(points, f"{met} of {len(report.bars)} bars met", *(f"[red]{each}[/]" for each in report.missed))


def _row(point: KvPoint) -> list[str]:
    ours = point.runs[OURS]
    return [
        point.shape,
        f"{point.demand:g}",
        f"{point.prefill_scale:g}",
        str(point.live),
        f"{ours.turns_per_hour:,.0f}",
        f"{point.bound_turns_per_hour:,.0f}",
        f"{ours.repeated_tokens_per_turn:,.0f}",
        f"{ours.generate_max_s:,.0f}",
        *(f"{fmean(point.ratios[rival]):.2f}" for rival in RIVALS),
    ]
