"""The rewards benchmark's report as tables for people."""

from __future__ import annotations

from callsheet.benchmarks.measuring.tables import new_table, verdict
from callsheet.benchmarks.rewards.report import RewardsReport
from rich.console import Group, RenderableType


def render(report: RewardsReport) -> RenderableType:
    """A row for each policy, then a row for each bar."""
    settings = report.settings
    title = f"{settings.scorings:,} scorings by {settings.models} models of about {settings.model_mib} MiB"
    columns = (">budget MiB", ">mean s", ">p50", ">p99", ">longest", ">restores", ">hit rate", ">batch", ">memory MiB")
    table = new_table(title, "policy", *columns)
    for name, each in report.policies.items():
        table.add_row(
            name,
            f"{each.budget_mib:.0f}",
            f"{each.mean_s:.3f}",
            f"{each.p50_s:.3f}",
            f"{each.p99_s:.3f}",
            f"{each.longest_s:.3f}",
            f"{each.restores}",
            f"{each.hit_rate:.2f}",
            f"{each.per_batch:.1f}",
            f"{each.memory_mib:.0f}",
        )
    bars = new_table("Bars", "what", ">found", ">at most", "")
    for name, (found, most) in report.bars.items():
        bars.add_row(name, f"{found:.3g}", f"{most:g}", verdict(found <= most))
    parts: list[RenderableType] = [table, bars]
    if report.overhead is not None:
        one = report.overhead
        parts.append(
            f"overhead: {one.scorings} scorings of {one.tokens} tokens, execution {one.execution_s:.3f} s, "
            f"restore / execution {one.restore_share:.2f}, hit rate {one.hit_rate:.2f}"
        )
    return Group(*parts)
