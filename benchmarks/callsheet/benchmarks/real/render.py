"""The real benchmark as a table for people."""

from __future__ import annotations

from callsheet.benchmarks.measuring.tables import new_table
from callsheet.benchmarks.real.report import NOTES, RealReport
from rich.console import Group, RenderableType

_FIGURES = (
    ("ACT with start", "act_with_start_mean_s", ".3f"),
    ("ACT mean", "act_mean_s", ".3f"),
    ("p99", "act_p99_s", ".2f"),
    ("longest wait", "wait_max_s", ".1f"),
    ("start wait", "start_wait_mean_s", ".1f"),
    ("step", "step_s", ".1f"),
    ("held", "held", ".0%"),
    ("used", "used", ".0%"),
)


def render(report: RealReport) -> RenderableType:
    """Every figure measured, and the simulator's prediction after it."""
    settings = report.settings
    title = (
        f"{settings.trajectories} trajectories on {report.cores} cores, rho {report.load.rho:.2f}, "
        f"seed {settings.seed}: measured (simulated), in s"
    )
    table = new_table(title, "policy", *(f">{heading}" for heading, _, _ in _FIGURES), ">service's CPU a command")
    for name, pair in report.policies.items():
        cells = [
            f"{format(getattr(pair.measured, figure), form)} ({format(getattr(pair.simulated, figure), form)})"
            for _, figure, form in _FIGURES
        ]
        service = "" if pair.service_cpu_s is None else f"{pair.service_cpu_s * 1000:.0f} ms"
        table.add_row(name, *cells, service, style="bold" if name == "callsheet" else None)
    notes = "".join(f"{name}: {note}.\n" for name, note in NOTES.items() if name in report.policies)
    note = (
        f"{notes}"
        f"The smallest command takes {report.costs.start_up_cpu_s * 1000:.0f} ms of CPU, and through the service "
        f"{report.costs.overhead_s * 1000:.0f} ms more. "
        f"A sandbox takes the service {report.costs.reset_cpu_s * 1000:.0f} ms of CPU. "
        f"{report.wall_s:.0f} s in all."
    )
    return Group(table, note)
