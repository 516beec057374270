"""The comparison of samples with the engine's record finds what differs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.gateway.conversations.samples import Sample
from callsheet.gateway.conversations.turns import Drift

from tests.support.sample_check import EngineCall, differences

FIRST = EngineCall((1, 2), (3, 4), (-0.1, -0.2), (7, 7), Drift.CLEAN, None)
SECOND = EngineCall((1, 2, 3, 4, 5), (6,), (-0.3,), (8,), Drift.CLEAN, 0)
WHOLE = Sample(
    token_ids=(1, 2, 3, 4, 5, 6),
    loss_mask=(0, 0, 1, 1, 0, 1),
    log_probs=(None, None, -0.1, -0.2, None, -0.3),
    versions=(None, None, 7, 7, None, 8),
    turns=(0, 1),
)


def test_a_sample_that_is_what_was_sampled() -> None:
    assert differences([FIRST, SECOND], [WHOLE]) == []


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        (replace(WHOLE, token_ids=(1, 2, 3, 9, 5, 6)), "not what the engine saw"),
        (replace(WHOLE, loss_mask=(0, 0, 1, 1, 1, 1)), "not sampled is trained on"),
        (replace(WHOLE, loss_mask=(0, 0, 1, 0, 0, 1)), "call 0: token 1 is trained on 0 times"),
        (replace(WHOLE, log_probs=(None, None, -0.1, -0.3, None, -0.3)), "log-probabilities differ"),
        (replace(WHOLE, versions=(None, None, 7, 8, None, 8)), "versions differ"),
    ],
)
def test_a_sample_that_is_not(sample: Sample, message: str) -> None:
    assert any(message in found for found in differences([FIRST, SECOND], [sample]))


def test_a_reply_that_is_missing_or_there_twice() -> None:
    only = Sample((1, 2, 3, 4), (0, 0, 1, 1), (None, None, -0.1, -0.2), (None, None, 7, 7), (0,))
    assert differences([FIRST, SECOND], [only]) == ["call 1: token 0 is trained on 0 times"]
    assert "call 0: token 0 is trained on 2 times" in differences([FIRST, SECOND], [WHOLE, only])


def test_only_the_end_of_a_realigned_reply_may_be_lost() -> None:
    second = replace(SECOND, prompt=(1, 2, 3, 9), drift=Drift.REALIGNED)
    sample = Sample((1, 2, 3, 9, 6), (0, 0, 1, 0, 1), (None, None, -0.1, None, -0.3), (None, None, 7, None, 8), (0, 1))
    assert differences([FIRST, second], [sample]) == []
    assert differences([FIRST, second], [replace(sample, loss_mask=(0, 0, 0, 0, 1))]) != []
