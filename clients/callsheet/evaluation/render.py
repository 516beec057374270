"""An evaluation's figures as a table for people."""

from __future__ import annotations

from callsheet.evaluation.results import EvaluationSummary
from rich.table import Table
from rich.text import Text


def render(summary: EvaluationSummary) -> Table:
    """Returns the table."""
    table = Table(title=Text(f"evaluation of {summary.environment}"), title_justify="left", show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    rows = [
        ("results", f"{summary.results}"),
        ("scored", f"{summary.scored}"),
        ("failed (score 0)", f"{summary.failed}"),
        ("excluded (says nothing of the model)", f"{summary.excluded}"),
        ("mean score", _number(summary.mean_score)),
        ("passed", "-" if summary.pass_share is None else f"{summary.pass_share:.1%}"),
        ("turns, mean", _number(summary.mean_turns)),
        ("replies cut at a limit of tokens", f"{summary.cut_replies}"),
        *((f"score: {name}, mean", _number(value)) for name, value in summary.components.items()),
        *((f"failure: {name}", f"{count}") for name, count in summary.failures.items()),
        *((f"seconds: {name}, mean", f"{value:.3f}") for name, value in summary.seconds.items()),
        ("lost trajectories that were tried again", f"{summary.lost_trajectories}"),
    ]
    for name, value in rows:
        table.add_row(Text(name), Text(value))
    return table


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
