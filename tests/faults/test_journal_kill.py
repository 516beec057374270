"""A scheduler's journal killed by -9 in the middle of its commits: what was acknowledged is there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.journals import JournalPlace
from tests.support.servers import postgres_server

_KILLS = 3


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[JournalPlace]:
    """An empty place for a journal, in either database."""
    if request.param == "sqlite":
        yield JournalPlace(tmp_path / "data", None)
    else:
        with postgres_server() as server:
            yield JournalPlace(tmp_path / "data", server.new_database())


def storm_until_killed(place: JournalPlace, lines: int) -> list[list[str]]:
    """Runs the storm, kills it once it has said so many lines, and returns the words of all whole lines it said."""
    command = [sys.executable, "-m", "tests.support.journal_storm", str(place.data_dir)]
    with subprocess.Popen(
        [*command, place.url] if place.url else command, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(lines)]
        process.kill()
        said += process.stdout.readlines()
    assert process.returncode == -9, f"it ended by itself: {process.returncode}"
    return [line.split() for line in said if line.endswith("\n")]


def test_what_was_acknowledged_survives_kills(place: JournalPlace) -> None:
    acknowledged: set[str] = set()
    finished: set[str] = set()
    for kill in range(_KILLS):
        # Not a round number, so that the kill falls within a commit now and then.
        said = storm_until_killed(place, 1_000 + 777 * kill)
        assert said[0] == ["epoch", str(2 * kill + 1)]
        acknowledged |= {action_id for what, action_id in said[1:] if what == "submitted"}
        finished |= {action_id for what, action_id in said[1:] if what == "finished"}

        with place.begun() as journal:
            assert journal.epoch == 2 * kill + 2
            actions = {action.action_id: action for action in journal.load().actions}
            assert acknowledged <= set(actions)
            for action_id in finished:
                assert actions[action_id].state == "succeeded"
            some = sorted(finished)[:: max(1, len(finished) // 50)]
            assert [journal.outcome("job", action_id) for action_id in some] == [name.encode() for name in some]
    assert finished
