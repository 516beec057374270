"""Runs commands, and tests again, as an unprivileged user from a test that runs as root."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from callsheet.options.temporary_directories import temporary_directory

# Outside of the pool of sandboxes and of every range that distributions use.
OTHER_UID = 81_234
REPOSITORY = Path(__file__).resolve().parents[2]
TESTS_TIMEOUT_S = 600
# Shows the directories that the command needs although the way to them leads through directories that only root may
# enter, in a mount namespace of its own: "hold" keeps them reachable while the closed directory is covered.
_SCRIPT = """
set -eu
hold=$1 closed=$2 uid=$3; shift 3
mount -t tmpfs -o mode=0755 tmpfs "$hold"
index=0
for needed in $NEEDED; do
  index=$((index + 1)); mkdir "$hold/$index"; mount --bind "$needed" "$hold/$index"
done
for cover in $closed; do mount -t tmpfs -o mode=0755 tmpfs "$cover"; done
index=0
for needed in $NEEDED; do
  index=$((index + 1)); mkdir -p "$needed"; mount --bind "$hold/$index" "$needed"
done
exec setpriv --reuid "$uid" --regid "$uid" --clear-groups -- "$@"
"""


@contextmanager
def _directory_of_other_user() -> Iterator[Path]:
    """A temporary directory that belongs to the other user."""
    with temporary_directory("callsheet-other-user-") as above:
        above.chmod(0o1711)
        path = above / "home"
        path.mkdir(mode=0o700)
        os.chown(path, OTHER_UID, OTHER_UID)
        yield path


def _run_as_other_user(
    command: Sequence[str], home: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """Runs a command with this Python and this repository, as a user who owns nothing but `home`.

    Skips the test where this process is not root or a program is missing.
    """
    if os.geteuid() != 0:
        pytest.skip("root is missing; this test drops from root to another user")
    for program in ("unshare", "setpriv", "mount"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is missing (package util-linux on Debian and Ubuntu)")
    needed = sorted({str(path) for path in (REPOSITORY, Path(sys.prefix), Path(sys.base_prefix))})
    closed = sorted({str(path) for name in needed for path in _closed_parents(Path(name))})
    with temporary_directory("callsheet-other-user-") as hold:
        arguments = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _SCRIPT, "sh", str(hold)]
        return subprocess.run(
            [*arguments, " ".join(closed), str(OTHER_UID), *command],
            check=False,
            capture_output=True,
            text=True,
            cwd="/",
            env={
                "PATH": os.environ["PATH"],
                "NEEDED": " ".join(_outermost(needed)),
                "HOME": str(home),
                "TMPDIR": str(home),
                "PYTHONDONTWRITEBYTECODE": "1",
                **environment,
            },
            timeout=timeout_s,
        )


def run_tests_as_other_user(chosen: str, *tests: str, marked: str = "") -> None:
    """Runs tests again as an unprivileged user; fails with their output if one of them fails.

    Args:
        chosen: What to choose of them, as pytest's -k has it.
        tests: Paths in the repository.
        marked: What to choose of them by their marks, as pytest's -m has it.
    """
    with _directory_of_other_user() as home:
        done = _run_as_other_user(
            [
                *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={home}/pytest"),
                *(f"--rootdir={REPOSITORY}", "-c", str(REPOSITORY / "pyproject.toml")),
                *("-k", chosen, "-m", marked, *(str(REPOSITORY / path) for path in tests)),
            ],
            home,
            {name: os.environ.get(name, "") for name in ("CI", "CALLSHEET_NIGHTLY")},
            timeout_s=TESTS_TIMEOUT_S,
        )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def _closed_parents(path: Path) -> list[Path]:
    """The outermost directory above a path that others may not enter, if there is one."""
    for parent in reversed(path.parents):
        if not stat.S_IMODE(parent.stat().st_mode) & stat.S_IXOTH:
            return [parent]
    return []


def _outermost(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if not any(path.startswith(f"{other}/") for other in paths)]
