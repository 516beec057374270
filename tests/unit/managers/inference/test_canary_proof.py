"""What proves that an engine has its new weights, and what does not."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from callsheet.managers.inference.proof import CanaryAnswer, Evidence, largest_difference, objection, warning

OLD = CanaryAnswer((1, 2, 3), (-1.0, -2.0, -3.0))
NEW = CanaryAnswer((1, 2, 4), (-1.0, -1.9, -2.5))
NEARLY_NEW = CanaryAnswer((1, 2, 4), (-1.0001, -1.9001, -2.4999))
GOOD = Evidence(version=5, version_read=5, before=OLD, after=NEW)


@pytest.mark.parametrize(
    "evidence",
    [
        GOOD,
        replace(GOOD, reference=NEARLY_NEW),
        replace(GOOD, expected=NEARLY_NEW),
        replace(GOOD, before=None, expected=NEARLY_NEW),
        replace(GOOD, after=OLD),
        replace(GOOD, before=None),
        replace(GOOD, before=NEW, reference=NEARLY_NEW),
    ],
    ids=[
        "changed",
        "as the first",
        "as the trainer's",
        "nothing before",
        "as before",
        "nothing to compare with",
        "was there already",
    ],
)
def test_what_proves_new_weights(evidence: Evidence) -> None:
    assert objection(evidence) == ""


@pytest.mark.parametrize(
    ("evidence", "said"),
    [
        (replace(GOOD, version_read=4), "names version 4 after an update to 5"),
        (replace(GOOD, reference=OLD), "differs from that of the first engine by 0.5"),
        (replace(GOOD, expected=OLD), "differs from that of the trainer's model by 0.5"),
        (replace(GOOD, expected=NEW, reference=OLD), "differs from that of the first engine"),
        (replace(GOOD, after=CanaryAnswer((1,), (math.nan,))), "are no numbers"),
        (replace(GOOD, after=CanaryAnswer((), ()), expected=NEW), "by inf"),
        (replace(GOOD, after=CanaryAnswer((1,), (-math.inf,)), expected=NEW), "are no numbers"),
    ],
)
def test_what_does_not(evidence: Evidence, said: str) -> None:
    assert said in objection(evidence)


@pytest.mark.parametrize("step", [0.0, 3.4e-5, 9e-4])
def test_an_answer_that_is_too_much_as_before_is_a_warning_that_says_what_else_there_is(step: float) -> None:
    after = CanaryAnswer(OLD.token_ids, tuple(each + step for each in OLD.log_probs))
    alike = replace(GOOD, after=after, shown="14 tensors were compared")
    assert objection(alike) == ""
    assert f"differs by {step:.3g}" in warning(alike)
    assert "14 tensors were compared" in warning(alike)
    assert "only the engine's word" in warning(replace(alike, shown=""))
    assert warning(GOOD) == warning(replace(GOOD, before=None)) == ""


def test_a_tie_may_fall_either_way_and_what_follows_it_is_not_compared() -> None:
    one = CanaryAnswer((1, 7, 3), (-1.0, -0.7, -5.0))
    assert largest_difference(one, CanaryAnswer((1, 8, 9), (-1.0, -0.7, -0.1))) == 0.0


def test_an_answer_that_is_shorter_is_compared_as_far_as_it_goes() -> None:
    assert largest_difference(CanaryAnswer((1,), (-1.0,)), NEW) == 0.0
