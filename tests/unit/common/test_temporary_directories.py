"""Temporary directories end with their process; those of a killed one are removed by the next, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from callsheet.options.temporary_directories import temporary_directory

_HOLD = """
import sys
from pathlib import Path
from callsheet.options.temporary_directories import temporary_directory
with temporary_directory("mine-", Path(sys.argv[1])) as directory:
    (directory / "below").mkdir()
    (directory / "below" / "file").write_text("x")
    print(directory, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(parent: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """A process that has a directory, until its input ends or it is killed."""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(parent)], stdin=pipe, stdout=pipe, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def test_a_killed_process_s_is_removed_and_a_live_one_s_is_not(tmp_path: Path) -> None:
    cleared: list[Path] = []
    with holder(tmp_path) as (live, kept), holder(tmp_path) as (killed, left):
        killed.kill()
        killed.wait()
        assert (left / "below" / "file").exists()
        with temporary_directory("mine-", tmp_path, cleared.append) as own:
            assert sorted(tmp_path.iterdir()) == sorted([kept, own])
            assert cleared == [left]
        assert (kept / "below" / "file").exists()
        assert live.stdin is not None
        live.stdin.close()
        live.wait()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [FileNotFoundError("own"), KeyboardInterrupt()])
def test_it_ends_with_an_error_which_goes_on(tmp_path: Path, error: BaseException) -> None:
    with pytest.raises(type(error)), temporary_directory("mine-", tmp_path):
        raise error
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_directory_of_this_user_and_name_stays(tmp_path: Path) -> None:
    place, elsewhere = tmp_path / "place", tmp_path / "elsewhere"
    for directory in (place, elsewhere, place / "others-1"):
        directory.mkdir()
    (place / "mine-file").touch()
    (place / "mine-link").symlink_to(elsewhere)
    names = ["mine-file", "mine-link", "others-1"]
    if os.geteuid() == 0:
        (place / "mine-foreign").mkdir()
        os.chown(place / "mine-foreign", 81_234, 81_234)
        names.append("mine-foreign")
    with temporary_directory("mine-", place):
        pass
    assert sorted(path.name for path in place.iterdir()) == sorted(names)
    assert elsewhere.is_dir()


def test_one_of_an_earlier_release_is_removed_once_it_is_old(tmp_path: Path) -> None:
    in_use, forgotten = tmp_path / "mine-in-use", tmp_path / "mine-forgotten"
    for directory in (in_use, forgotten):
        directory.mkdir(mode=0o700)
    os.utime(forgotten, (0.0, 0.0))
    with temporary_directory("mine-", tmp_path):
        assert in_use.is_dir()
        assert not forgotten.exists()
    assert list(tmp_path.iterdir()) == [in_use]


def test_many_starts_at_once_leave_each_other_s_alone(tmp_path: Path) -> None:
    with holder(tmp_path) as (first, left):
        first.kill()
        first.wait()
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", _HOLD, str(tmp_path)]
    started = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(6)]
    try:
        own = {Path(process.stdout.readline().strip()) for process in started if process.stdout is not None}
        assert set(tmp_path.iterdir()) == own
        assert len(own) == len(started)
        assert left not in own
    finally:
        for process in started:
            process.communicate()
    assert list(tmp_path.iterdir()) == []
