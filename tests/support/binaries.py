"""Finds programs that come as system packages, installed or unpacked (scripts/system_packages.sh)."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

DEBIAN_PACKAGES = {
    "buildah": "buildah",
    "bwrap": "bubblewrap",
    "chromedriver": "chromium-driver",
    "chromium": "chromium",
    "docker-registry": "docker-registry",
    "faketime": "faketime",
    "postgres": "postgresql",
    "redis-server": "redis-server",
    "skopeo": "skopeo",
}
UNPACKED = Path(sys.prefix) / "system"


@dataclass(frozen=True)
class Program:
    """A program that can be started.

    Attributes:
        path: Where it is; related programs (initdb beside postgres) are in the same directory.
        environment: Variables that it needs in addition to those of this process.
    """

    path: Path
    environment: dict[str, str]


def _newest_first(postgresql: Path) -> list[Path]:
    versions = [path for path in postgresql.glob("*/bin") if path.parent.name.isdigit()]
    return sorted(versions, key=lambda path: int(path.parent.name), reverse=True)


def _directories() -> Iterator[tuple[Path, dict[str, str]]]:
    for directory in map(Path, os.get_exec_path()):
        yield directory, {}
    for directory in _newest_first(Path("/usr/lib/postgresql")):
        yield directory, {}
    libraries = [*map(str, UNPACKED.glob("usr/lib/*-linux-gnu*")), os.environ.get("LD_LIBRARY_PATH", "")]
    environment = {"LD_LIBRARY_PATH": os.pathsep.join(filter(None, libraries))}
    for directory in [UNPACKED / "usr/bin", *_newest_first(UNPACKED / "usr/lib/postgresql")]:
        yield directory, environment


def find_program(name: str) -> Program | None:
    """Returns a program by name, or None if it is neither installed nor unpacked."""
    for directory, environment in _directories():
        if path := shutil.which(name, path=str(directory)):
            return Program(Path(path), environment)
    return None


def require_program(name: str) -> Program:
    """Returns a program by name; skips the test, saying which package is missing, if it is not there."""
    if (program := find_program(name)) is None:
        pytest.skip(f"{name} is missing (package {DEBIAN_PACKAGES.get(name, name)} on Debian and Ubuntu)")
    return program


def faketime_library() -> Path:
    """Returns what gives a process another clock as LD_PRELOAD; skips the test if it is not there."""
    program = require_program("faketime").path
    # `faketime` itself looks for it below /usr alone.
    (library, *_) = program.parent.parent.glob("lib/*/faketime/libfaketime.so.1")
    return library
