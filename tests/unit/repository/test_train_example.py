"""What the training example decides, without a trainer."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from examples.training.work import Ending, Load
from scripts.train_example import judge, rise, step_s


def run(rewards: list[float], step_time: float = 2.0, **others: Any) -> dict[str, Any]:
    """The figures of a run."""
    steps = [{"reward": reward, "step_s": step_time} for reward in rewards]
    return {"seed": 0, "seconds": 100.0, "steps": steps, **others}


def test_a_rise_is_of_the_first_and_last_tenth() -> None:
    assert rise(run([0.25, 0.75, *[0.5] * 16, 1.0, 0.5])) == (0.5, 0.75)
    assert rise(run([0.25, 0.5])) == (0.25, 0.5)


def test_the_first_step_does_not_count() -> None:
    found = run([0.5] * 3)
    found["steps"][0]["step_s"] = 60.0
    assert step_s(found) == 2.0


@pytest.mark.parametrize(("theirs", "met"), [(2.0, False), (3.5, True)])
def test_a_figure_below_its_bar_is_told(theirs: float, met: bool) -> None:
    rivals = {
        "callsheet": [run([0.5] * 3)],
        "no spare": [run([0.5] * 3, 2.0 * theirs)],
        "local": [run([0.5] * 3, theirs)],
    }
    figures = judge([run([0.25, 1.0])], {"well": rivals, "faults": rivals})
    by_name = {figure["figure"]: figure["met"] for figure in figures}
    assert {figure["figure"].rpartition(" over ")[2] for figure in figures if not figure["decides"]} == {"no spare"}
    assert by_name["seed 0: rise of the reward"]
    assert by_name["faults: step time of local over callsheet"] == met
    assert not by_name["faults: step time of local over no spare"]
    assert by_name["well: step time of local over callsheet"]
    assert not any(figure["met"] for figure in judge([run([0.5, 0.75], seconds=481.0)], {}))


def test_work_is_drawn_from_its_name() -> None:
    load = Load(work_s=2.0, slow=0.1, hanging=0.05, crashing=0.05)
    drawn = [load.work(f"step-{number}") for number in range(4000)]
    assert drawn == [load.work(f"step-{number}") for number in range(4000)]
    ends = Counter(work.ending for work in drawn)
    assert ends[Ending.HANG] == pytest.approx(200, abs=50)
    assert ends[Ending.CRASH] == pytest.approx(200, abs=50)
    assert Load().work("any").seconds == 0.0
