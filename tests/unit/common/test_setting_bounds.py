"""The least numbers that settings declare, for options and for other fields."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import pytest
from callsheet.options.declaration import AtLeast, Setting, check_least, from_texts


@dataclass(frozen=True, slots=True)
class Bounded:
    slots: Annotated[int | None, Setting("The most at once.", least=1)] = 8
    pause_s: Annotated[float, Setting("In ms.", flag="--pause-ms", least=2, parse=lambda ms: ms / 1000)] = 0.002
    retries: Annotated[int, AtLeast(0)] = 0
    name: str = ""

    def __post_init__(self) -> None:
        check_least(self)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"slots": 0}, "^slots: 0: must be at least 1$"),
        ({"slots": math.nan}, "^slots: nan: must be at least 1$"),
        ({"retries": -1}, "^retries: -1: must be at least 0$"),
    ],
)
def test_a_number_below_its_least_is_named(changes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Bounded(**changes)  # type: ignore[arg-type]


def test_none_and_the_least_itself_are_taken() -> None:
    assert (Bounded(slots=None, retries=0), Bounded(slots=1).slots) == (Bounded(None), 1)


def test_what_is_parsed_is_bounded_as_it_is_read() -> None:
    assert from_texts(Bounded, ["--pause-ms=2"]).pause_s == 0.002
    with pytest.raises(ValueError, match=r"^pause_ms: 1\.0: must be at least 2$"):
        from_texts(Bounded, ["pause_ms=1"])
