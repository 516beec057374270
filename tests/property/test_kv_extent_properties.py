from __future__ import annotations

import pytest
from callsheet.managers.inference.torch_engine.extents import Extent, ExtentAllocator
from hypothesis import given
from hypothesis import strategies as st

CAPACITY, ALIGNMENT = 64, 4


@given(st.lists(st.one_of(st.integers(1, 40), st.integers(-8, -1)), max_size=60))
def test_extents_never_overlap_and_nothing_is_lost(steps: list[int]) -> None:
    """A positive step allocates so many places, a negative one releases one of those that are held."""
    allocator = ExtentAllocator(CAPACITY, ALIGNMENT)
    held: list[Extent] = []
    for step in steps:
        if step > 0:
            fits = allocator.fits(step)
            taken = allocator.allocate(step)
            assert (taken is not None) == fits
            if taken is not None:
                assert taken.length >= step
                assert taken.start % ALIGNMENT == 0
                assert taken.length % ALIGNMENT == 0
                held.append(taken)
        elif held:
            allocator.release(held.pop(step % len(held)))
        places = [place for one in held for place in range(one.start, one.end)]
        assert len(places) == len(set(places))
        assert all(0 <= place < CAPACITY for place in places)
        assert allocator.used == len(places)
    for one in held:
        allocator.release(one)
    assert allocator.allocate(CAPACITY) == Extent(0, CAPACITY)


def test_refuses_nonsense() -> None:
    allocator = ExtentAllocator(CAPACITY, ALIGNMENT)
    taken = allocator.allocate(10)
    assert taken == Extent(0, 12)
    for wrong in (Extent(12, 4), Extent(8, 8), Extent(0, 0), Extent(60, 8)):
        with pytest.raises(ValueError, match="was not handed out"):
            allocator.release(wrong)
    with pytest.raises(ValueError, match="length is 0"):
        allocator.allocate(0)
    with pytest.raises(ValueError, match="capacity is 65"):
        ExtentAllocator(65, ALIGNMENT)
