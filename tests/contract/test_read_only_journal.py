"""The journal of a run that is over, on SQLite and on PostgreSQL."""

from __future__ import annotations

from contextlib import closing

import pytest
from callsheet.scheduler.core.words.records import JobOpened, SchedulerAlive
from callsheet.scheduler.history.reader import HistoryReader
from callsheet.scheduler.store.journal_errors import DatabaseLockedError, DataDirectoryLockedError, JournalVersionError
from callsheet.scheduler.store.read_only import DeadJournal
from callsheet.v1 import admin_service_pb2
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from tests.support.journals import JournalPlace, submitted


def test_it_has_what_a_scheduler_would_go_on_from_once_nobody_runs_on_it(place: JournalPlace) -> None:
    with place.begun() as journal:
        journal.commit([JobOpened("job", b""), submitted("a", spec=b""), SchedulerAlive(50.0)])
        recovered = journal.load()
        with pytest.raises((DataDirectoryLockedError, DatabaseLockedError), match="in use by"):
            DeadJournal(place.data_dir, place.url)
    with closing(DeadJournal(place.data_dir, place.url)) as dead:
        assert dead.recovered == recovered
        assert (dead.epoch, dead.recovered.alive_at) == (1, 50.0)
        request = admin_service_pb2.ListActionHistoryRequest(job_id="job")
        (action,) = HistoryReader(dead.engine).actions(request).actions
        assert action.key.action_id == "a"
        # Others may look at the same time, and a scheduler may start.
        with closing(DeadJournal(place.data_dir, place.url)), place.begun() as journal:
            assert journal.epoch == 2


def test_nothing_can_be_written(place: JournalPlace) -> None:
    with place.begun():
        pass
    with closing(DeadJournal(place.data_dir, place.url)) as dead, dead.engine.connect() as connection:
        if place.url is not None:
            with pytest.raises(DBAPIError, match="read-only"):
                connection.execute(text("UPDATE scheduler SET epoch = 9"))
    with place.begun() as journal:
        assert journal.epoch == 2


def test_a_journal_of_another_schema_is_refused(place: JournalPlace) -> None:
    with place.begun():
        pass
    with place.outside() as connection:
        connection.execute("UPDATE journal_schema SET name = 'journal-9'")
    with pytest.raises(JournalVersionError, match=r"journal-9.*open it with the Callsheet that wrote it"):
        DeadJournal(place.data_dir, place.url)
