"""Plots of the training example: reward, parts of a step, and completion times of actions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

PARTS: Final = ("generate_s", "environment_s", "reward_s", "waiting_s")
Runs = Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]


def mean_parts(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the mean seconds of each part of a step; what is no rollout is training. The first step is left out."""
    steps = [step for run in runs for step in run["steps"][1:]]
    found = {part.removesuffix("_s"): sum(step[part] for step in steps) / len(steps) for part in PARTS}
    return {**found, "training": sum(step["step_s"] - step["rollout_s"] for step in steps) / len(steps)}


def mean_actions(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the mean completion time of each kind of action over runs."""
    kinds = sorted({kind for run in runs for kind in run["mean_action_s"]})
    return {kind: sum(run["mean_action_s"].get(kind, 0.0) for run in runs) / len(runs) for kind in kinds}


def draw(place: Path, seeds: Sequence[Mapping[str, Any]], comparisons: Runs) -> None:
    """Draws what there are figures for, as files in a directory."""
    import matplotlib as mpl

    mpl.use("Agg")
    if seeds:
        _draw_rewards(place / "reward.svg", seeds)
    if comparisons:
        _draw_comparisons(place / "comparisons.svg", comparisons)


def _draw_rewards(file: Path, seeds: Sequence[Mapping[str, Any]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 3.2), layout="constrained")
    axes = figure.add_subplot()
    for run in seeds:
        axes.plot([step["reward"] for step in run["steps"]], label=f"seed {run['seed']}")
    axes.set(xlabel="step", ylabel="mean reward", ylim=(0.0, 1.05), title="Reward from tests in sandboxes")
    axes.legend()
    figure.savefig(file)


def _draw_comparisons(file: Path, comparisons: Runs) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 6.0), layout="constrained")
    panels = figure.subplots(2, len(comparisons), squeeze=False)
    for column, (load, backends) in enumerate(comparisons.items()):
        names = list(backends)
        _stack(panels[0][column], names, [mean_parts(backends[name]) for name in names])
        panels[0][column].set(title=f"step time, {load}", ylabel="s")
        actions = [mean_actions(backends[name]) for name in names]
        _side_by_side(panels[1][column], names, actions)
        panels[1][column].set(title=f"mean action completion time, {load}", ylabel="s")
    figure.savefig(file)


def _stack(axes: Any, names: Sequence[str], parts: Sequence[Mapping[str, float]]) -> None:
    base = [0.0] * len(names)
    for part in parts[0]:
        heights = [each[part] for each in parts]
        axes.bar(names, heights, bottom=base, label=part)
        base = [low + height for low, height in zip(base, heights, strict=True)]
    axes.legend()


def _side_by_side(axes: Any, names: Sequence[str], actions: Sequence[Mapping[str, float]]) -> None:
    kinds = sorted({kind for each in actions for kind in each})
    width = 0.8 / len(names)
    for number, (name, each) in enumerate(zip(names, actions, strict=True)):
        places = [at + number * width for at in range(len(kinds))]
        axes.bar(places, [each.get(kind, 0.0) for kind in kinds], width, label=name)
    axes.set_xticks([at + width for at in range(len(kinds))], kinds)
    axes.legend()
