"""The file of a journal after its rows are gone."""

from __future__ import annotations

from pathlib import Path

from callsheet.scheduler.core.words.records import ActionFinished, JobClosed, JobOpened, Record, WorkForgotten
from callsheet.scheduler.store.engine import SQLITE_FILE
from callsheet.scheduler.store.journal import Journal

from tests.support.journals import JournalPlace, submitted

MIB = 1024 * 1024
# Actions in a commit; the disk is slow where many tests run.
_TOGETHER = 20


def life(journal: Journal, job_id: str, actions: int, *, size: int = 64 * 1024) -> None:
    """A job with actions whose outcomes are large."""
    journal.commit([JobOpened(job_id, b"")])
    for first in range(0, actions, _TOGETHER):
        batch: list[Record] = []
        for number in range(first, first + _TOGETHER):
            batch.append(submitted(f"a{number}", job_id))
            batch.append(ActionFinished(job_id, f"a{number}", "succeeded", bytes(size), 2.0))
        journal.commit(batch)


def size_of(directory: Path) -> int:
    """Bytes of the files of a SQLite journal."""
    return sum(path.stat().st_size for path in directory.glob(f"{SQLITE_FILE}*"))


def test_a_file_shrinks_after_its_jobs_were_closed(tmp_path: Path) -> None:
    place = JournalPlace(tmp_path / "data", None)
    with place.begun() as journal:
        life(journal, "job", 1_000)
        journal.commit([JobClosed("job")])
        while journal.has_garbage:
            journal.purge(100)
    assert size_of(place.data_dir) < 20 * MIB, "62 MiB of outcomes are gone"


def test_a_file_does_not_grow_over_many_lives_of_a_job(tmp_path: Path) -> None:
    place = JournalPlace(tmp_path / "data", None)
    sizes = []
    with place.begun() as journal:
        for _ in range(12):
            life(journal, "job", 100)
            journal.commit([JobClosed("job")])
            while journal.has_garbage:
                journal.purge(100)
            sizes.append(size_of(place.data_dir))
    assert max(sizes) < 24 * MIB, sizes


def test_forgotten_actions_make_room_for_others(tmp_path: Path) -> None:
    place = JournalPlace(tmp_path / "data", None)
    with place.begun() as journal:
        journal.commit([JobOpened("job", b"")])
        for first in range(0, 1_000, _TOGETHER):
            ids = [f"a{number}" for number in range(first, first + _TOGETHER)]
            journal.commit([submitted(each) for each in ids])
            journal.commit([ActionFinished("job", each, "succeeded", bytes(64 * 1024), 2.0) for each in ids])
            journal.commit([WorkForgotten("job", tuple(ids), bytes(32 * _TOGETHER))])
    assert size_of(place.data_dir) < 12 * MIB
