"""The comparison as pictures: PNG files, drawn without a display."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from callsheet.benchmarks.simulator.comparison.figures import CoresOverTime, PolicyResult
from callsheet.benchmarks.simulator.comparison.sweeps import OURS, AgeingPoint, CoresPoint
from matplotlib.axes import Axes
from matplotlib.figure import Figure

_INCHES: Final = (7.0, 4.2)
_DPI: Final = 110


def plot_act(path: Path, results: Sequence[PolicyResult]) -> None:
    """The distribution of ACT of every policy, over all seeds."""
    axes, save = _axes(path, "ACT (s)", "fraction of actions", "ACT of external actions")
    for result in results:
        fractions = len(result.by_seed[0].act_quantiles_s)
        mean = [
            sum(run.act_quantiles_s[index] for run in result.by_seed) / len(result.by_seed)
            for index in range(fractions)
        ]
        heights = [index / max(fractions - 1, 1) for index in range(fractions)]
        axes.plot(mean, heights, label=result.name, linewidth=_width(result.name))
    axes.set_xscale("log")
    axes.legend(fontsize=8)
    save()


def plot_cores(path: Path, name: str, cores: CoresOverTime, capacity: int) -> None:
    """Cores held and used over time by one policy."""
    axes, save = _axes(path, "time (s)", "cores", f"{name}: cores held and used")
    axes.step(cores.starts_s, cores.held, where="post", label="held")
    axes.step(cores.starts_s, cores.used, where="post", label="used")
    if capacity:
        axes.axhline(capacity, color="grey", linestyle=":", label="there are")
    axes.legend(fontsize=8)
    save()


def plot_load(path: Path, points: Mapping[str, Sequence[CoresPoint]]) -> None:
    """Mean ACT against load."""
    axes, save = _axes(path, "load rho", "mean ACT (s)", "ACT against load")
    _plot_points(axes, points, "rho", "act_mean_s")
    axes.set_yscale("log")
    save()


def plot_resources(path: Path, points: Mapping[str, Sequence[CoresPoint]]) -> None:
    """Cores against the mean ACT they buy."""
    axes, save = _axes(path, "mean ACT (s)", "cores", "resources against ACT")
    _plot_points(axes, points, "act_mean_s", "cores")
    axes.set_xscale("log")
    save()


def plot_frontier(path: Path, points: Sequence[AgeingPoint], span: str) -> None:
    """What the ageing setting trades: p99 and step (or throughput) against the mean, by beta."""
    axes, save = _axes(path, "mean ACT (s)", "p99 ACT (s)", "the frontier along the ageing setting beta")
    second = axes.twinx()
    second.set_ylabel(span)
    means = [point.act_mean_s for point in points]
    axes.plot(means, [point.act_p99_s for point in points], "o-", label="p99 ACT")
    second.plot(means, [point.span for point in points], "s--", color="tab:orange", label=span)
    for point in points:
        axes.annotate(f"{point.beta:g}", (point.act_mean_s, point.act_p99_s), fontsize=8)
    axes.legend(fontsize=8, loc="upper left")
    second.legend(fontsize=8, loc="upper right")
    save()


def _plot_points(axes: Axes, points: Mapping[str, Sequence[CoresPoint]], x: str, y: str) -> None:
    for name, line in points.items():
        xs, ys = ([getattr(point, each) for point in line] for each in (x, y))
        axes.plot(xs, ys, "o-", label=name, linewidth=_width(name))
    axes.legend(fontsize=8)


def _axes(path: Path, x_label: str, y_label: str, title: str) -> tuple[Axes, Callable[[], None]]:
    # Not pyplot: it keeps every figure and asks for a display.
    figure = Figure(figsize=_INCHES, dpi=_DPI)
    axes = figure.add_subplot()
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_title(title)
    axes.grid(visible=True, alpha=0.3)

    def save() -> None:
        figure.tight_layout()
        figure.savefig(path)

    return axes, save


def _width(name: str) -> float:
    return 2.5 if name == OURS else 1.2
