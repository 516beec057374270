"""What an earlier manager left running, found by its mark."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from callsheet.managers.sandbox import janitor


@contextmanager
def left_behind(marker: str, sandbox_id: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process as a sandbox starts them."""
    environment = {"CALLSHEET_SANDBOX_OF": marker, "CALLSHEET_SANDBOX": sandbox_id}
    pipe = subprocess.PIPE
    with subprocess.Popen(["/bin/cat"], env=environment, stdin=pipe, stdout=pipe) as process:
        try:
            # While it becomes another program nobody can read its environment.
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(b"ready\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.fixture
def marker() -> str:
    return f"callsheet-test-{uuid.uuid4().hex}"


def test_those_of_one_sandbox_are_told_from_others(marker: str) -> None:
    with left_behind(marker, "one") as one, left_behind(marker, "two") as two:
        assert {process.pid for process in janitor.marked_processes(marker)} == {one.pid, two.pid}
        assert [process.pid for process in janitor.marked_processes(marker, "one")] == [one.pid]
        assert janitor.kill_marked(marker, "one") == 1
        assert (one.poll() is None, two.poll() is None) == (False, True)
    assert janitor.kill_marked(marker) == 0


def test_what_is_forked_during_a_look_is_killed_too(marker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    look = janitor.marked_processes
    with left_behind(marker, "one") as first, left_behind(marker, "one") as late:

        def first_without_the_late(wanted: str, sandbox_id: str | None = None) -> list[psutil.Process]:
            found = look(wanted, sandbox_id)
            return found if first.poll() is not None else [process for process in found if process.pid != late.pid]

        monkeypatch.setattr(janitor, "marked_processes", first_without_the_late)
        assert janitor.kill_marked(marker) == 2
        assert None not in (first.poll(), late.poll())


def test_groups_of_managers_that_never_came_back_are_found_once_they_are_empty_and_old(tmp_path: Path) -> None:
    groups = {
        "callsheet-one-0123456789ab-0123abcd": True,
        "callsheet-node-1-sandbox-0123456789ab-s0": True,
        "callsheet-probe-0123456789abcdef": True,
        "callsheet-managers": False,
        "somebody-else-0123456789ab-1": False,
        "callsheet-used-0123456789ab-1": False,
        "callsheet-used-below-0123456789ab-1": False,
        "callsheet-new-0123456789ab-1": False,
    }
    for name in groups:
        inner = tmp_path / name / "commands"
        inner.mkdir(parents=True)
        for each in (inner.parent, inner):
            (each / "cgroup.procs").touch()
    (tmp_path / "callsheet-used-0123456789ab-1" / "cgroup.procs").write_text("4711\n")
    (tmp_path / "callsheet-used-below-0123456789ab-1" / "commands" / "cgroup.procs").write_text("4711\n")
    unified = tmp_path / "callsheet-unified-0123456789ab-1"
    unified.mkdir()
    (unified / "cgroup.events").write_text("populated 1\nfrozen 0\n")
    for name in groups:
        os.utime(tmp_path / name, (1000.0, 3000.0 if "-new-" in name else 1000.0))
    os.utime(unified, (1000.0, 1000.0))
    expected = {name for name, is_over in groups.items() if is_over}
    assert {path.name for path in janitor.abandoned_groups(tmp_path, 2000.0)} == expected
    (unified / "cgroup.events").write_text("populated 0\nfrozen 0\n")
    os.utime(unified, (1000.0, 1000.0))
    assert {path.name for path in janitor.abandoned_groups(tmp_path, 2000.0)} == expected | {unified.name}
