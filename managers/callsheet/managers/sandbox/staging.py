"""Prepares directories of Python packages that all sandboxes can read.

Sandboxes run the system's Python as another user: they see neither this environment's packages nor a home directory
that only its owner may enter. What their commands need (pytest, the dependencies of a task) is installed once into a
directory of its own and shown read-only in every sandbox.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from callsheet.managers.sandbox.isolation.bubblewrap import find_system_python
from callsheet.options.temporary_directories import temporary_directory

# Part of the key: a new layout of the directory makes new directories.
_LAYOUT = 1
_PIP_SECONDS = 600.0
_SHORT_SECONDS = 60.0
_SHOWN_CHARACTERS = 2000


class StagingError(RuntimeError):
    """Packages could not be staged; the message holds the end of what pip said."""


def stage_python_packages(requirements: Sequence[str], directory: Path) -> Path:
    """Installs packages for the Python of sandboxes; returns the directory to use as a `StageDirectory`.

    Done once for each set of requirements and version of Python; a directory that is there is complete. Blocks for as
    long as pip takes.

    Args:
        requirements: As pip takes them, for instance "pytest==8.3.4"; paths of local packages are fine.
        directory: Where staged directories are kept; made if it is not there.

    Raises:
        ValueError: No requirements, or one that looks like an option.
        StagingError: pip failed.
    """
    if not requirements:
        raise ValueError("requirements: empty: must name at least one package")
    for requirement in requirements:
        if not requirement or requirement.startswith("-"):
            raise ValueError(f"requirements: {requirement!r}: must be a requirement, not an option")
    python = find_system_python() or Path(sys.executable)
    version = _version_of(python)
    key = json.dumps([_LAYOUT, sorted(requirements), version]).encode()
    target = directory / f"python-{hashlib.sha256(key).hexdigest()[:20]}"
    if target.is_dir():
        return target
    directory.mkdir(parents=True, exist_ok=True, mode=0o755)
    with temporary_directory(".staging-", directory) as temporary:
        _install(requirements, version, temporary)
        # Nobody can write the bytecode later: the directory is read-only where it is used.
        _run([str(python), "-I", "-m", "compileall", "-q", str(temporary)], _PIP_SECONDS, accept=(0, 1))
        _let_everybody_read(temporary)
        _publish(temporary, target)
    return target


def _install(requirements: Sequence[str], version: tuple[int, int], target: Path) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
    command += ["--no-compile", "--no-warn-script-location", "--root-user-action", "ignore", "--target", str(target)]
    if version != sys.version_info[:2]:
        command += ["--python-version", f"{version[0]}.{version[1]}", "--only-binary=:all:"]
    _run([*command, *requirements], _PIP_SECONDS)


def _version_of(python: Path) -> tuple[int, int]:
    said = _run([str(python), "-I", "-S", "-c", "import sys; print(*sys.version_info[:2])"], _SHORT_SECONDS)
    major, minor = said.split()
    return int(major), int(minor)


def _run(command: Sequence[str], timeout_s: float, accept: Sequence[int] = (0,)) -> str:
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout_s
        )
    except subprocess.TimeoutExpired as error:
        raise StagingError(f"{Path(command[0]).name} took more than {timeout_s:g} s") from error
    if done.returncode not in accept:
        said = (done.stderr or done.stdout).strip()[-_SHOWN_CHARACTERS:]
        raise StagingError(f"{Path(command[0]).name} ended with {done.returncode}: {said}")
    return done.stdout


def _let_everybody_read(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode) | 0o444
            path.chmod(mode | 0o111 if path.is_dir() or mode & 0o100 else mode)


def _publish(temporary: Path, target: Path) -> None:
    """Gives the finished directory its name, unless another process was first."""
    try:
        os.rename(temporary, target)
    except OSError:
        if not target.is_dir():
            raise
