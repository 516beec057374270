"""A role's temporary files: its own place, what it starts inherits it, and its next start ends what a kill left."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest
from callsheet.managers.supervision.remains import own_temporary_files

# Starts a process of a session of its own that is deaf to signals, leaves a file, and waits.
_ROLE = """
import subprocess, sys, tempfile
from callsheet.managers.supervision.remains import own_temporary_files
with own_temporary_files("role"):
    tempfile.mkstemp()
    deaf = ["sh", "-c", "trap '' TERM HUP; echo; sleep 86400"]
    child = subprocess.Popen(deaf, start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_it_is_where_temporary_files_go_and_ends_with_the_block(place: Path) -> None:
    with own_temporary_files("role"):
        (own,) = place.iterdir()
        assert Path(tempfile.mkdtemp()).parent == own
        said = subprocess.run(["sh", "-c", "echo $TMPDIR"], check=True, capture_output=True, text=True).stdout
        assert Path(said.strip()) == own
        assert own.name.startswith("callsheet-role-")
    assert list(place.iterdir()) == []
    assert os.environ["TMPDIR"] == str(place)
    assert tempfile.gettempdir() == str(place)


def test_processes_and_files_of_a_killed_one_are_gone_with_the_next_start(place: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", _ROLE], stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        child = psutil.Process(int(process.stdout.readline()))
        family = [child, *child.children()]
        with own_temporary_files("role"):
            assert all(each.is_running() for each in family)
        process.kill()
    assert all(each.is_running() for each in family)
    with own_temporary_files("role"):
        _, alive = psutil.wait_procs(family, timeout=30.0)
        assert alive == []
        assert len(list(place.iterdir())) == 1
    assert list(place.iterdir()) == []
