"""Nodes of one machine get cores of their own, as long as there are any."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.deploy.fleet.node import held_cores


def test_cores_are_nobody_elses_while_there_are_any_and_then_the_least_shared(tmp_path: Path) -> None:
    usable = [0, 1, 2]
    with held_cores(2, usable, tmp_path) as first, held_cores(1, usable, tmp_path) as second:
        assert (first, second) == ([0, 1], [2])
        with held_cores(2, usable, tmp_path) as third, held_cores(1, usable, tmp_path) as fourth:
            assert (third, fourth) == ([0, 1], [2])
    with held_cores(3, usable, tmp_path) as again:
        assert again == usable, "they went back"


@pytest.mark.parametrize("count", [0, 3])
def test_more_than_there_are_is_refused(tmp_path: Path, count: int) -> None:
    with (
        pytest.raises(ValueError, match=f"cores: {count} must be between 1 and 2"),
        held_cores(count, [0, 1], tmp_path),
    ):
        raise AssertionError
