"""Servers and places that several contract suites use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.journals import JournalPlace
from tests.support.servers import PostgresServer, postgres_server, redis_server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server for the whole run."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """One Redis server for the whole run."""
    with redis_server() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> JournalPlace:
    """An empty place for a journal, in either database."""
    if request.param == "sqlite":
        return JournalPlace(tmp_path / "data", None)
    server: PostgresServer = request.getfixturevalue("postgres")
    return JournalPlace(tmp_path / "data", server.new_database())
