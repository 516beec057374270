"""The sandbox benchmark's report as a table for people."""

from __future__ import annotations

from typing import Any

from callsheet.benchmarks.measuring.tables import new_table
from callsheet.benchmarks.sandbox.report import OVERHEAD_TARGET, SandboxBenchReport
from rich.console import Group, RenderableType

_ROWS = (
    ("create", "create", "ms"),
    ("  bwrap alone", "bare_create", "ms"),
    ("env_reset", "reset", "ms"),
    ("first command", "first_exec", "ms"),
    ("command", "exec", "ms"),
    ("  bwrap alone", "bare_exec", "ms"),
    ("cores, thaw, command, freeze", "step", "ms"),
    ("through the whole service", "service_step", "ms"),
    ("destroy", "destroy", "ms"),
    ("reward in an empty sandbox", "score", "ms"),
    ("  in a copy of one with a file of 10 MB", "score_large", "ms"),
    ("  in a copy of one with 1,000 of 10 kB", "score_many", "ms"),
    ("change of cores", "switch", "us"),
    ("until a wide command gives way", "giving_way", "ms"),
    ("freeze", "freeze", "us"),
)


def render(report: SandboxBenchReport) -> RenderableType:
    """A row for each verb, two columns for each number of sandboxes."""
    found = report.as_json()
    title = f"Sandboxes, {report.isolation}, {report.samples} samples"
    table = new_table(title, "p50 / p99", *(f">{each['sandboxes']} live" for each in found))
    for heading, verb, unit in _ROWS:
        name = heading.replace("bwrap", "a process") if report.isolation == "none" else heading
        table.add_row(f"{name}, {'µs' if unit == 'us' else unit}", *(_pair(each, verb, unit) for each in found))
    table.add_row("memory of an idle one, MB", *(_number(each["idle_mb"]) for each in found))
    table.add_row("created a second", *(_number(each["creates_per_s"]) for each in found))
    table.add_row(
        f"overhead of a 1 s action, below {OVERHEAD_TARGET:.0%}",
        *(f"[{'green' if each.met else 'red'}]{each.overhead_share:.1%}[/]" for each in report.results),
    )
    table.add_row("  of a plain process", *(f"{each.plain_overhead_share:.1%}" for each in report.results))
    return Group(table, "\n".join(f"{name}: {value}" for name, value in report.capabilities.items()))


def _pair(found: dict[str, Any], verb: str, unit: str) -> str:
    return " / ".join(
        _number(found[name]) for name in (f"{verb}_p50_{unit}", f"{verb}_p99_{unit}") if found.get(name) is not None
    )


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"
