"""How lanes are told apart, and what of a tree of processes is changed; with this machine's own processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from callsheet.managers.sandbox import process_tree
from callsheet.managers.sandbox.cgroups import GroupLayout
from callsheet.managers.sandbox.node_sharing import Lane, lanes
from callsheet.managers.sandbox.node_sharing.lanes import LaneMethod, lane_method, process_lane_method, put_tree
from callsheet.managers.sandbox.process_tree import cpu_seconds_below, for_every_thread, processes_below, threads_below

_CAP_SYS_NICE = 23
# Starts a child with a second thread, says so, and waits for the end of its input.
_FAMILY = '''
import subprocess, sys
child = """import sys, threading, time
while time.process_time() < 0.1: pass  # the kernel counts CPU time by ticks
threading.Thread(target=sys.stdin.read).start(); print('ready', flush=True)
"""
subprocess.run([sys.executable, "-c", child], stdin=sys.stdin, start_new_session=True)
'''


@pytest.fixture
def family() -> Iterator[int]:
    """A process with a child of two threads; returns its id."""
    with subprocess.Popen(
        [sys.executable, "-c", _FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.stdin.close()


def test_the_tree_has_all_threads(family: int) -> None:
    assert len(list(processes_below(family))) == 2
    assert len(list(threads_below(family, include_root=False))) == 2
    assert family in threads_below(family, include_root=True)
    assert cpu_seconds_below(family) > 0


def test_a_thread_that_ended_meanwhile_is_no_error(family: int) -> None:
    def gone(thread: int) -> None:
        raise ProcessLookupError(thread)

    for_every_thread(family, gone, include_root=True)


def test_a_storm_of_forks_does_not_hold_the_walk_up(monkeypatch: pytest.MonkeyPatch) -> None:
    forks = itertools.count(1)
    monkeypatch.setattr(process_tree, "threads_below", lambda *_, **__: [next(forks)])
    changed: list[int] = []
    for_every_thread(os.getpid(), changed.append, include_root=False)
    assert changed == list(range(1, len(changed) + 1))


def test_a_process_that_is_gone_has_no_tree() -> None:
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    assert list(threads_below(process.pid, include_root=True)) == []
    assert cpu_seconds_below(process.pid) == 0.0


def test_a_process_that_ends_while_its_threads_are_listed_is_no_error(
    family: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    child = next(process for process in processes_below(family) if process != family)
    listed = os.listdir

    def ended(path: str) -> list[str]:
        if path == f"/proc/{child}/task":
            # What the kernel says between opening and reading.
            raise ProcessLookupError(path)
        return listed(path)

    monkeypatch.setattr(os, "listdir", ended)
    assert list(threads_below(family, include_root=True)) == [int(thread) for thread in listed(f"/proc/{family}/task")]


def test_the_children_of_a_thread_that_ends_meanwhile_are_found(family: int, monkeypatch: pytest.MonkeyPatch) -> None:
    below = list(processes_below(family))
    read = Path.read_text

    def ended(path: Path) -> str:
        if path == Path(f"/proc/{family}/task/{family}/children"):
            # What the kernel says between opening and reading.
            raise ProcessLookupError(path)
        return read(path)

    monkeypatch.setattr(Path, "read_text", ended)
    assert list(processes_below(family)) == below


def test_everything_below_changes_its_lane_and_the_root_does_not(family: int) -> None:
    method = process_lane_method()
    if method is not LaneMethod.NICE_PROCESSES:
        # Without it nobody, root included, can make a process that is nice normal again: another method is chosen.
        assert not _has_cap_sys_nice()
        return
    for lane, niceness in ((Lane.BACKGROUND, 13), (Lane.FOREGROUND, 0)):
        put_tree(family, lane, method)
        below = list(threads_below(family, include_root=False))
        assert {os.getpriority(os.PRIO_PROCESS, thread) for thread in below} == {niceness}
        # One of them that only idle cores would run keeps whatever lock it has.
        assert {os.sched_getscheduler(thread) for thread in below} == {os.SCHED_OTHER}
        assert os.getpriority(os.PRIO_PROCESS, family) == 0


def _has_cap_sys_nice() -> bool:
    lines = Path("/proc/self/status").read_text().splitlines()
    effective = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_NICE & 1)


def _require_grouping_by_session() -> None:
    setting = Path("/proc/sys/kernel/sched_autogroup_enabled")
    if not setting.exists() or setting.read_text().strip() != "1":
        pytest.skip("grouping by session is missing (kernel.sched_autogroup_enabled)")


def _session_nice(process: int) -> int:
    return int(Path(f"/proc/{process}/autogroup").read_text().split()[-1])


def test_sessions_weigh_less_in_the_background(family: int) -> None:
    _require_grouping_by_session()
    child = next(process for process in processes_below(family) if process != family)
    for lane, weight in ((Lane.BACKGROUND, 13), (Lane.FOREGROUND, 0)):
        put_tree(family, lane, LaneMethod.SESSION_WEIGHT)
        assert (_session_nice(child), _session_nice(family)) == (weight, 0)


def test_a_session_that_is_still_closed_is_tried_again(family: int, monkeypatch: pytest.MonkeyPatch) -> None:
    _require_grouping_by_session()
    child = next(process for process in processes_below(family) if process != family)
    refusals = iter([PermissionError(child)])

    def closed_at_first(path: str, mode: str, *, buffering: int) -> object:
        for refusal in refusals:
            # What another user than root hears of a process that has not become its program yet.
            raise refusal
        return open(path, mode, buffering=buffering)

    monkeypatch.setattr(lanes, "open", closed_at_first, raising=False)
    put_tree(family, Lane.BACKGROUND, LaneMethod.SESSION_WEIGHT)
    assert _session_nice(child) == 13


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("cpu.shares", LaneMethod.WEIGHT_GROUP),
        ("cpu.weight", LaneMethod.WEIGHT_GROUP),
    ],
)
def test_a_group_that_can_be_weighed_is_used(tmp_path: Path, file: str, expected: LaneMethod) -> None:
    core, tree = tmp_path / "core", tmp_path / "cpu"
    for directory in (core / "one", tree / "one"):
        directory.mkdir(parents=True)
    where = core if file == "cpu.weight" else tree
    (where / "one" / file).touch()
    layout = GroupLayout(core, {"cpu": tree})
    assert layout.weight_file("one") == where / "one" / file
    assert lane_method(layout.weight_file("one"), by_process=False) is expected
    if where == tree:
        assert layout.without("cpu").weight_file("one") is None


def test_without_a_group_processes_are_changed() -> None:
    assert lane_method(None, by_process=True) is process_lane_method()
    assert lane_method(None, by_process=False) is LaneMethod.NONE
