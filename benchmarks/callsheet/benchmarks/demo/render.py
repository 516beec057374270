"""The demo's report as tables for a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import astuple

from callsheet.benchmarks.demo.modes import CALLSHEET, RESERVED
from callsheet.benchmarks.demo.report import DECISIONS, SCORES, TOKENS, DemoReport, ModeReport, RunReport
from callsheet.benchmarks.measuring.tables import new_table
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_TIME_COLUMNS = ("queue\np50", "\np99", "execution\np50", "\np99", "overhead\np50", "\np99", "ACT\nmean", "\np99")


_COMPARED: tuple[tuple[str, Callable[[ModeReport], str]], ...] = (
    ("mean ACT of external actions", lambda mode: seconds(mode.act_mean_s)),
    ("mean wait of a trajectory to start", lambda mode: seconds(mode.start_wait_mean_s)),
    ("wall-clock time", lambda mode: seconds(mode.wall_s)),
    ("CPU time used", lambda mode: seconds(mode.resources.cpu_s)),
    ("core time held", lambda mode: seconds(mode.resources.held_core_s)),
    ("held but idle", lambda mode: share(mode.resources.idle_while_held)),
    ("utilisation of the cores", lambda mode: share(mode.resources.utilisation)),
    ("solved", lambda mode: f"{mode.rewards.solved} of {mode.rewards.total}"),
)


def render(report: DemoReport) -> RenderableType:
    """Returns the tables of both modes, their comparison, and what in them is real."""
    return Group(
        _kinds_table(f"Callsheet: {CALLSHEET.description}", report.callsheet),
        _kinds_table(f"The same workload, reserved: {RESERVED.description}", report.reserved),
        _comparison(report),
        _step(report.callsheet),
        _notes(report),
    )


def render_run(report: RunReport) -> RenderableType:
    """Returns the table of a run on a stack that was there before."""
    rewards = report.run.rewards
    lines = [
        f"{rewards.solved} of {rewards.total} episodes solved in {seconds(report.run.wall_s)}.",
        *(f"Problem: {problem}." for problem in report.problems()),
    ]
    table = _kinds_table(f"Callsheet: {CALLSHEET.description}", report.run)
    return Group(table, _step(report.run), Text("\n".join(lines)))


def _kinds_table(title: str, mode: ModeReport) -> Table:
    """One row a kind; narrow enough for a terminal of 80 columns."""
    table = Table(
        title=title,
        title_justify="left",
        caption=_failures(mode),
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("kind", no_wrap=True)
    for column in ("n", *_TIME_COLUMNS):
        table.add_column(column, justify="right", no_wrap=True)
    for kind, figures in mode.kinds.items():
        count, *times = astuple(figures)
        table.add_row(kind, str(count), *map(seconds, times))
    return table


def _failures(mode: ModeReport) -> str:
    if not mode.failures:
        return "failed actions: none"
    return "failed actions: " + ", ".join(f"{count} {kind}" for kind, count in mode.failures.items())


def _comparison(report: DemoReport) -> Table:
    ours, theirs = report.callsheet, report.reserved
    cores = ours.resources.cores
    title = f"{report.trajectories} trajectories on {cores} core{'s' if cores > 1 else ''} (the engine has its own)"
    table = new_table(title, "", ">Callsheet", ">reserved")
    for what, cell in _COMPARED:
        table.add_row(what, cell(ours), cell(theirs))
    return table


def _step(mode: ModeReport) -> Text:
    """The step's summary as a trainer's log would have it; what is 0 is left out here."""
    told = ", ".join(f"{name} {value:.4g}" for name, value in mode.step.items() if value)
    return Text(f"job.step_summary(): {told}\n")


def _notes(report: DemoReport) -> Text:
    lines = [
        f"Mean ACT of external actions: {report.act_speedup:.1f}x better than with one core reserved per trajectory.",
        "ACT is queue + execution + overhead; external actions are all but generate.",
        f"Decisions: {DECISIONS}.",
        f"Tokens: {TOKENS}.",
        f"Scores: {SCORES}.",
        f"Isolation of sandboxes: {report.isolation}. The whole demo took {report.wall_s:.0f} s.",
        *(f"Problem: {problem}." for problem in report.problems()),
    ]
    return Text("\n".join(lines))


def seconds(value: float) -> str:
    """A time for people: milliseconds below a second, with three digits."""
    if value < 0.00995:
        return f"{value * 1000:.1f}ms"
    if value < 0.9995:
        return f"{value * 1000:.0f}ms"
    return f"{value:.2f}s" if value < 9.995 else f"{value:.1f}s"


def share(value: float) -> str:
    """A share for people."""
    return f"{value:.0%}"
