"""A private PostgreSQL server for the length of a soak."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

_USER: Final = "callsheet"
_LIMIT_S: Final = 90.0


class NoDatabaseError(Exception):
    """PostgreSQL is not installed, or could not be started."""


@contextmanager
def private_postgresql(*, naptime_s: int) -> Iterator[str]:
    """Runs a server on a Unix socket in a directory of its own; yields the URL of its database.

    Args:
        naptime_s: Seconds between its autovacuums. By default it is a minute, which a short soak sees too rarely.

    Raises:
        NoDatabaseError: It cannot be run.
    """
    programs, environment = _programs()
    directory = Path(tempfile.mkdtemp(prefix="callsheet-soak-postgres-"))
    dropped: dict[str, Any] = {}
    if os.geteuid() == 0:
        # PostgreSQL refuses to run as root.
        nobody = pwd.getpwnam("nobody")
        os.chown(directory, nobody.pw_uid, nobody.pw_gid)
        dropped = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}

    def run(name: str, *arguments: str) -> None:
        try:
            subprocess.run(
                [str(programs / name), *arguments],
                check=True,
                timeout=_LIMIT_S,
                cwd="/",
                env=os.environ | environment,
                stdout=subprocess.DEVNULL,
                **dropped,
            )
        except (OSError, subprocess.SubprocessError) as error:
            raise NoDatabaseError(f"{name} failed: {error}") from error

    try:
        data = directory / "data"
        run("initdb", "-D", str(data), "-U", _USER, "--auth=trust", "--encoding=UTF8", "--no-sync")
        settings = ("listen_addresses=", f"unix_socket_directories={directory}", f"autovacuum_naptime={naptime_s}")
        options = " ".join(f"-c '{setting}'" for setting in settings)
        control = ("pg_ctl", "-D", str(data), "-w", "-t", "60", "-l", str(directory / "log"))
        run(*control, "-o", options, "start")
        try:
            yield f"postgresql://{_USER}@/postgres?host={directory}"
        finally:
            run(*control, "-m", "immediate", "stop")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def database_bytes(url: str) -> int:
    """The size of a database, its write-ahead log left out."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    return int(row[0]) if row is not None else 0


def _programs() -> tuple[Path, dict[str, str]]:
    """Where PostgreSQL's programs are, on PATH, installed or unpacked beside this environment; and what they need."""
    unpacked = Path(sys.prefix) / "system"
    libraries = os.pathsep.join(map(str, unpacked.glob("usr/lib/*-linux-gnu*")))
    places = [*map(Path, os.get_exec_path()), *Path("/usr/lib/postgresql").glob("*/bin")]
    for place in places:
        if shutil.which("initdb", path=str(place)):
            return place, {}
    for place in unpacked.glob("usr/lib/postgresql/*/bin"):
        if shutil.which("initdb", path=str(place)):
            return place, {"LD_LIBRARY_PATH": libraries}
    raise NoDatabaseError("there is no PostgreSQL: install it, or soak --databases sqlite alone")
