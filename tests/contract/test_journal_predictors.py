"""What predictors learned is kept by the journal, on SQLite and on PostgreSQL."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from callsheet.scheduler.core.words.records import JobOpened
from callsheet.scheduler.store.journal_errors import StaleEpochError

from tests.support.journals import JournalPlace


def test_saved_nodes_are_there_after_a_restart(place: JournalPlace) -> None:
    with place.begun() as journal:
        journal.save_predictors([("[3]", "[1.0]"), ('[3,"test"]', "[2.0]")], [])
    with place.begun() as journal:
        assert sorted(journal.load_predictors()) == [('[3,"test"]', "[2.0]"), ("[3]", "[1.0]")]


def test_they_can_be_read_before_the_epoch_begins(place: JournalPlace) -> None:
    with place.begun() as journal:
        journal.save_predictors([("a", "1")], [])
    with closing(place.open()) as journal:
        assert journal.load_predictors() == [("a", "1")]


def test_a_node_saved_again_replaces_itself_and_removed_ones_are_gone(place: JournalPlace) -> None:
    with place.begun() as journal:
        journal.save_predictors([("a", "1"), ("b", "2"), ("c", "3")], [])
        journal.save_predictors([("b", "20"), ("d", "4")], ["c", "never there"])
        assert sorted(journal.load_predictors()) == [("a", "1"), ("b", "20"), ("d", "4")]


def test_saving_nothing_is_no_error(place: JournalPlace) -> None:
    with place.begun() as journal:
        journal.save_predictors([], [])
        assert journal.load_predictors() == []


def test_a_path_may_be_long_and_of_any_text(place: JournalPlace) -> None:
    path = "🎬" * 5000
    with place.begun() as journal:
        journal.save_predictors([(path, "[]")], [])
        assert journal.load_predictors() == [(path, "[]")]


def test_a_scheduler_of_an_older_epoch_saves_nothing(place: JournalPlace) -> None:
    with place.begun() as journal:
        with place.outside() as outside:
            outside.execute("UPDATE scheduler SET epoch = epoch + 1")
        with pytest.raises(StaleEpochError):
            journal.save_predictors([("a", "1")], [])
        assert place.count("predictor_nodes") == 0


def test_nodes_are_saved_beside_commits(place: JournalPlace) -> None:
    with place.begun() as journal:

        def commit() -> None:
            for number in range(30):
                journal.commit([JobOpened(f"job-{number}", b"")])

        commits = threading.Thread(target=commit)
        commits.start()
        for number in range(30):
            journal.save_predictors([(f"path-{number}", "[]")], [])
        commits.join()
        assert len(journal.load_predictors()) == 30
        assert len(journal.load().jobs) == 30
