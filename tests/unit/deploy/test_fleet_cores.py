"""Nodes of one machine get cores of their own, as long as there are any, whatever others put in the way."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from callsheet.deploy.fleet import node
from callsheet.deploy.fleet.node import default_directory, held_cores

# As an expression of a lambda.
_CHOWN: Any = os.chown


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


@pytest.mark.parametrize(
    "plant",
    [
        lambda place, other: place.symlink_to(other),
        lambda place, _: (place.mkdir(), place.chmod(0o777)),
        lambda place, _: place.touch(),
        pytest.param(
            lambda place, _: (place.mkdir(mode=0o700), _CHOWN(place, 81_234, 81_234)),
            marks=pytest.mark.skipif(os.geteuid() != 0, reason="root is missing; only root gives directories away"),
        ),
    ],
)
def test_what_others_planted_is_not_used_and_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Path], object]
) -> None:
    other = tmp_path / "other"
    other.mkdir(mode=0o700)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    plant(tmp_path / f"callsheet-cores-{os.geteuid()}", other)
    # The owner of the link's target would hold this lock for ever.
    with (other / "all").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with held_cores(1, [0, 1]) as first, held_cores(1, [0, 1]) as second:
            assert (first, second, list(other.iterdir())) == ([0], [1], [other / "all"])
    assert default_directory() == tmp_path / "state" / "callsheet" / "cores"


def test_a_lock_is_waited_for_within_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node, "_LOCK_WAIT_S", 0.0)
    with (tmp_path / "all").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="all: was locked by another"), held_cores(1, [0], tmp_path):
            raise AssertionError
