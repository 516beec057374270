"""Journals of earlier schemas become today's, on SQLite and on PostgreSQL, and no row is lost on the way.

`recorded/journal-3.*.sql` are dumps of journals that commit c2d6b1cb wrote. Its scheduler ran with two no-op managers.
Its client closed the job "old", and opened the job "train" with three groups of two trajectories that finished. It
acknowledged a batch of the first group, took one of the second, and left the third in the buffer. Four trajectories
stayed open, each with a step that ran and a step that waited; two calls of each kind ran, and a manager drained. Then
all processes got SIGKILL.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from callsheet.scheduler.core.recovery import restore
from callsheet.scheduler.core.state.scheduler_state import CoreSettings, SchedulerState
from callsheet.scheduler.core.words.records import ManagerLeaves
from callsheet.scheduler.service.codec.outcomes import encode_outcome
from callsheet.scheduler.service.server import JOURNALLED
from callsheet.scheduler.store.engine import create_journal_engine
from callsheet.scheduler.store.schema import SCHEMA
from sqlalchemy import inspect

from tests.support.command_line import invoke
from tests.support.journals import JournalPlace, Rows
from tests.support.servers import PostgresServer

RECORDED = Path(__file__).with_name("recorded")


@pytest.fixture
def recorded(place: JournalPlace) -> JournalPlace:
    """A journal that c2d6b1cb wrote."""
    place.data_dir.mkdir(mode=0o700)
    kind = "sqlite" if place.url is None else "postgresql"
    script = (RECORDED / f"journal-3.{kind}.sql").read_text(encoding="utf-8")
    with place.outside() as connection:
        connection.executescript(script) if isinstance(connection, sqlite3.Connection) else connection.execute(script)
    return place


@pytest.fixture
def fresh(place: JournalPlace, request: pytest.FixtureRequest, tmp_path: Path) -> JournalPlace:
    """An empty place in the same kind of database."""
    if place.url is None:
        return JournalPlace(tmp_path / "fresh", None)
    server: PostgresServer = request.getfixturevalue("postgres")
    return JournalPlace(tmp_path / "fresh", server.new_database())


def shape_of(place: JournalPlace) -> dict[str, list[Any]]:
    """Returns columns, keys and indexes of all tables."""
    engine = create_journal_engine(place.data_dir, place.url)
    with engine.connect() as connection:
        look = inspect(connection)
        shape = {
            table: [
                sorted((each["name"], str(each["type"]), each["nullable"]) for each in look.get_columns(table)),
                look.get_pk_constraint(table),
                look.get_unique_constraints(table),
                sorted((each["name"], each["column_names"]) for each in look.get_indexes(table)),
            ]
            for table in look.get_table_names()
        }
    engine.dispose()
    return shape


def assert_kept(before: Rows, after: Rows) -> None:
    """Checks that each row has the values that it had; new columns are empty."""
    for table in before.keys() - {"journal_schema", "scheduler"}:
        new = {column for row in after[table] for column in row} - {column for row in before[table] for column in row}
        kept = [{name: value for name, value in row.items() if name not in new} for row in after[table]]
        assert sorted(kept, key=repr) == sorted(before[table], key=repr), table
        assert all(not row[column] for row in after[table] for column in new), table


def test_a_journal_of_c2d6b1cb_is_migrated_and_keeps_each_row(recorded: JournalPlace, fresh: JournalPlace) -> None:
    before = recorded.rows()
    with recorded.begun() as journal:
        found = journal.load()
        outcomes = {each.action_id: journal.outcome("train", each.action_id) for each in found.actions}
    assert_kept(before, recorded.rows())
    assert recorded.rows()["journal_schema"] == [{"name": SCHEMA}]
    assert outcomes == {row["action_id"]: row["outcome"] for row in before["actions"] if row["job_number"] == 2}
    state = SchedulerState(2, encode_outcome, CoreSettings())
    restore(state, found, JOURNALLED, max(row["alive_at"] for row in before["scheduler"]))
    (job,) = state.jobs.values()
    assert sorted(job.trajectories) == [f"open-{number}" for number in range(4)]
    assert Counter(each.state for each in found.actions) == {"succeeded": 24, "dispatched": 8, "queued": 4}
    assert sorted(job.groups) == ["g0", "g1", "g2"]
    assert [(each.batch_id, each.acknowledged, len(each.trajectory_ids)) for each in found.batches] == [
        ("acknowledged", True, 0),
        ("leased", False, 2),
    ]
    assert len(found.buffered) == 4
    costs = [each.cost for each in found.trajectories] + [job.account]
    assert all(cost is not None and cost.spent.held["memory"] for cost in costs)
    fresh.open().close()
    assert shape_of(recorded) == shape_of(fresh)


def test_a_journal_of_the_schema_before_is_migrated(place: JournalPlace) -> None:
    with place.begun():
        pass
    with place.outside() as connection:
        connection.execute("DROP TABLE drains")
        connection.execute("UPDATE journal_schema SET name = 'journal-4'")
    with place.begun() as journal:
        drains = (ManagerLeaves("m", "first", float("inf")), ManagerLeaves("n", "first", 12.5))
        journal.commit([*drains, ManagerLeaves("gone", "first", 1.0), ManagerLeaves("gone", "first", None)])
        journal.commit([replace(drains[1], leaves_by=13.5)])
    with place.begun() as journal:
        assert journal.load().drains == (drains[0], replace(drains[1], leaves_by=13.5))


def test_a_migration_that_is_killed_leaves_the_journal_as_it_was(recorded: JournalPlace) -> None:
    before, shape = recorded.rows(), shape_of(recorded)
    program = (
        "import os, signal, sys; from dataclasses import replace; from pathlib import Path\n"
        "from callsheet.scheduler.store import migrations\n"
        "first, second = migrations.STEPS\n"
        "migrations.STEPS = (first, replace(second, change=lambda _: os.kill(os.getpid(), signal.SIGKILL)))\n"
        "migrations.migrate_stopped(Path(sys.argv[1]), *sys.argv[2:], dry_run=False)\n"
    )
    place = [str(recorded.data_dir), *([recorded.url] if recorded.url else [])]
    killed = subprocess.run([sys.executable, "-c", program, *place], timeout=120, check=False)
    assert killed.returncode == -9
    assert (recorded.rows(), shape_of(recorded)) == (before, shape)
    with recorded.begun():
        assert_kept(before, recorded.rows())


def test_the_command_shows_its_steps_and_then_takes_them(recorded: JournalPlace) -> None:
    before = recorded.rows()
    place = ["--data-dir", str(recorded.data_dir)]
    if recorded.url is not None:
        (recorded.data_dir / "url").touch(mode=0o600)
        (recorded.data_dir / "url").write_text(recorded.url)
        place += ["--database-url-file", str(recorded.data_dir / "url")]
    shown = invoke("journal", "migrate", *place, "--dry-run", "--json")
    assert recorded.rows() == before
    done = invoke("journal", "migrate", *place, "--json")
    steps = json.loads(done.output)["steps"]
    assert json.loads(shown.output) == {"dry_run": True, "steps": steps}
    assert [(step["before"], step["after"], step["rows"]) for step in steps] == [
        ("journal-3", "journal-4", len(before["actions"])),
        ("journal-4", "journal-5", 0),
    ]
    assert_kept(before, recorded.rows())
    assert "nothing to do" in invoke("journal", "migrate", *place).output
    with recorded.begun():
        locked = invoke("journal", "migrate", *place, "--dry-run")
        assert (locked.exit_code, "in use by" in locked.output) == (1, True)
    with recorded.outside() as connection:
        connection.execute("UPDATE journal_schema SET name = 'journal-9'")
    newer = invoke("journal", "migrate", *place)
    assert (newer.exit_code, "a journal of schema 'journal-9'" in newer.output) == (1, True)
    missing = invoke("journal", "migrate", "--data-dir", str(recorded.data_dir / "nowhere"))
    assert (missing.exit_code, "it has no journal.sqlite3" in missing.output) == (1, True)
    assert not (recorded.data_dir / "nowhere").exists()
