from __future__ import annotations

from callsheet.managers.reward.batches import plan_batches
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.integers(1, 500), max_size=40), st.integers(1, 2000))
def test_every_sequence_once_and_little_padding(lengths: list[int], max_tokens: int) -> None:
    batches = plan_batches(lengths, max_tokens)
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or longest * len(batch) <= max_tokens
        assert longest <= 2 * min(lengths[index] for index in batch)


def test_equal_lengths_share_a_batch() -> None:
    assert plan_batches([10, 10, 10], 100) == [[0, 1, 2]]
    assert plan_batches([10, 30, 11, 25], 100) == [[0, 2], [3, 1]]
