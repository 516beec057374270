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
from callsheet.managers.sandbox.cgroups import GroupLayout


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


OLD, NEW, BEFORE = 1000.0, 3000.0, 2000.0


def made(parent: Path, name: str, made_at: float, *, populated: bool | None = None) -> Path:
    """A group as the kernel shows it: of version 2 with cgroup.events, else with the processes that are in it."""
    group = parent / name
    group.mkdir(parents=True)
    if populated is None:
        (group / "cgroup.procs").touch()
    else:
        (group / "cgroup.events").write_text(f"populated {int(populated)}\nfrozen 0\n")
    os.utime(group, (made_at, made_at))
    return group


@pytest.mark.parametrize(
    ("name", "made_at", "populated", "is_over"),
    [
        ("callsheet-killed-0123456789ab-1", OLD, False, True),
        ("callsheet-a-b-c-0123456789ab-1", OLD, False, True),
        ("callsheet-new-0123456789ab-1", NEW, False, False),
        # It idles: the tree of "cpu" has its commands alone.
        ("callsheet-idle-0123456789ab-1", OLD, True, False),
        ("somebody-else-0123456789ab-1", OLD, False, False),
        ("callsheet-managers-of-all-1", OLD, False, False),
    ],
)
def test_a_sandbox_is_abandoned_if_nothing_of_it_lives(
    tmp_path: Path, name: str, made_at: float, populated: bool, is_over: bool
) -> None:
    layout = GroupLayout(tmp_path / "unified", {"cpu": tmp_path / "cpu", "pids": tmp_path / "unified"})
    trees = [made(layout.controllers["cpu"], name, made_at), made(layout.core, name, made_at, populated=populated)]
    assert janitor.abandoned_groups(layout, BEFORE) == (trees if is_over else [])


def test_a_tree_alone_is_no_sign_that_a_sandbox_is_over(tmp_path: Path) -> None:
    """Its manager may have its groups of version 2 elsewhere."""
    layout = GroupLayout(tmp_path / "unified", {"cpu": tmp_path / "cpu"})
    made(tmp_path / "cpu", "callsheet-elsewhere-0123456789ab-1", OLD)
    assert janitor.abandoned_groups(layout, BEFORE) == []


@pytest.mark.parametrize("parent", ["cpu", "unified"])
def test_a_trial_is_abandoned_wherever_it_was_made(tmp_path: Path, parent: str) -> None:
    layout = GroupLayout(tmp_path / "unified", {"cpu": tmp_path / "cpu"})
    trial = made(tmp_path / parent, "callsheet-probe-0123456789abcdef", OLD, populated=False)
    made(tmp_path / parent, "callsheet-probe-fedcba9876543210", NEW, populated=False)
    assert janitor.abandoned_groups(layout, BEFORE) == [trial]
