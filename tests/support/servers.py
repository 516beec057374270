"""Private PostgreSQL and Redis servers, on Unix sockets in directories of their own."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from tests.support.binaries import Program, require_program

_USER = "callsheet"


@dataclass(frozen=True)
class PostgresServer:
    """A running server; `url` is that of its first database."""

    socket_directory: Path

    @property
    def url(self) -> str:
        """The database that every server has."""
        return self._url("postgres")

    def new_database(self) -> str:
        """Creates an empty database; returns its URL."""
        name = f"test_{uuid.uuid4().hex}"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self._url(name)

    def _url(self, database: str) -> str:
        return f"postgresql://{_USER}@/{database}?host={self.socket_directory}"


@contextmanager
def postgres_server(*settings: str) -> Iterator[PostgresServer]:
    """Runs a PostgreSQL server, with `settings` such as "fsync=off"; skips the test if there is no PostgreSQL."""
    postgres = require_program("postgres")
    # Not under pytest's own directory, which the server's user may not enter.
    with _directory_of_server() as directory:
        data = directory / "data"
        _run(postgres, "initdb", "-D", str(data), "-U", _USER, "--auth=trust", "--encoding=UTF8", "--no-sync")
        options = ["listen_addresses=", f"unix_socket_directories={directory}", *settings]
        joined = " ".join(f"-c '{option}'" for option in options)
        control = ("pg_ctl", "-D", str(data), "-w", "-t", "60", "-l", str(directory / "log"))
        _run(postgres, *control, "-o", joined, "start")
        try:
            yield PostgresServer(directory)
        finally:
            _run(postgres, *control, "-m", "immediate", "stop")


@contextmanager
def redis_server(*arguments: str) -> Iterator[str]:
    """Runs a Redis server that keeps what it acknowledges, unless `arguments` say otherwise; yields its URL."""
    redis = require_program("redis-server")
    with tempfile.TemporaryDirectory(prefix="redis-") as directory:
        socket = f"{directory}/socket"
        command = [str(redis.path), "--port", "0", "--unixsocket", socket, "--dir", directory, "--save", ""]
        command += ["--appendonly", "yes", "--appendfsync", "always", *arguments]
        environment = os.environ | redis.environment
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stdout is not None
            try:
                lines = []
                for line in process.stdout:
                    lines.append(line)
                    if "ready to accept connections" in line.lower():
                        break
                else:
                    raise RuntimeError(f"redis-server ended: {''.join(lines)}")
                yield f"unix://{socket}"
            finally:
                process.kill()


@contextmanager
def _directory_of_server() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        yield directory
    finally:
        shutil.rmtree(directory)


def _run(postgres: Program, name: str, *arguments: str) -> None:
    """Runs a program of PostgreSQL, which refuses to run as root."""
    dropped: dict[str, Any] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        dropped = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
    subprocess.run(
        [str(postgres.path.parent / name), *arguments],
        check=True,
        timeout=90,
        cwd="/",
        env=os.environ | postgres.environment,
        stdout=subprocess.DEVNULL,
        **dropped,
    )
