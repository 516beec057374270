"""What the training example decides, without a trainer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from examples.training.work import Ending, Load
from scripts.train_example import judge, rise


def run(rewards: list[float], **others: Any) -> dict[str, Any]:
    """The figures of a run."""
    steps = [{"reward": reward} for reward in rewards]
    return {"seed": 0, "seconds": 100.0, "steps": steps} | others


def test_a_rise_is_of_the_first_and_last_tenth() -> None:
    assert rise(run([0.25, 0.75, *[0.5] * 16, 1.0, 0.5])) == (0.5, 0.75)
    assert rise(run([0.25, 0.5])) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("rewards", "seconds", "met"),
    [([0.25, 1.0], 100.0, True), ([0.5, 0.75], 100.0, False), ([0.25, 1.0], 481.0, False)],
)
def test_a_figure_below_its_bar_is_reported(rewards: list[float], seconds: float, met: bool) -> None:
    behind = run([0.5] * 3, staleness=[1, 4.5], batch_trajectories=[8])
    assert all(figure["met"] for figure in judge([run(rewards, seconds=seconds)])) == met
    assert [figure["met"] for figure in judge([], [behind])] == [False]


def test_work_is_drawn_from_its_name() -> None:
    load = Load(work_s=2.0, slow=0.1, hanging=0.05, crashing=0.05)
    drawn = [load.work(f"step-{number}") for number in range(4000)]
    assert drawn == [load.work(f"step-{number}") for number in range(4000)]
    ends = Counter(work.ending for work in drawn)
    assert ends[Ending.HANG] == pytest.approx(200, abs=50)
    assert ends[Ending.CRASH] == pytest.approx(200, abs=50)
    assert Load().work("any").seconds == 0.0
