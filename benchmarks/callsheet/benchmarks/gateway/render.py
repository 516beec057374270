"""The gateway benchmark's report as tables for people."""

from __future__ import annotations

from callsheet.benchmarks.gateway.report import SHOWN, GatewayReport
from callsheet.benchmarks.measuring.tables import new_table, verdict
from rich.console import Group, RenderableType


def render(report: GatewayReport) -> RenderableType:
    """What was run, a row for each bar, and what differs."""
    title = f"{report.settings.conversations:,} conversations, {report.calls:,} calls, {report.tokens:,} sampled tokens"
    found = new_table(title, "what", ">found")
    for drift, count in report.drift.items():
        found.add_row(f"{drift} prompts", f"{count:,}")
    found.add_row("samples of conversations without branches", f"{report.rows:,} of {report.row_calls:,} calls")
    found.add_row("samples of those with branches", f"{report.branched_rows:,} of {report.branched_calls:,} calls")
    found.add_row("conversations that drift if messages are rendered anew", f"{report.rendered_anew:.1%}")
    found.add_row("tokens of a row per call / tokens of samples", f"{report.repeated_tokens:.2f}")
    found.add_row("milliseconds of a call", f"{report.call_ms:.2f}")
    found.add_row("gateway killed", f"{report.kills}")
    bars = new_table("Bars", "what", ">found", ">bar", "")
    for name, (value, bar, met) in report.bars.items():
        bars.add_row(name, f"{value:.3g}", f"{bar:g}", verdict(met))
    differing = list(report.differences.items())[:SHOWN]
    parts: list[RenderableType] = [found, bars, *(f"{name}: {'; '.join(texts[:3])}" for name, texts in differing)]
    return Group(*parts)
