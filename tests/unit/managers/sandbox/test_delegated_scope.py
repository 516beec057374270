"""systemd is asked for groups where a process has none; here by programs that stand in for busctl and systemctl."""

from __future__ import annotations

import os
import pwd
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace

import pytest
from callsheet.deploy.checks import group_note
from callsheet.managers.sandbox.cgroups import layout, obtain_groups, probe_layout
from callsheet.managers.sandbox.cgroups.delegation import MANAGERS_GROUP, systemd_of_user
from callsheet.managers.sandbox.cgroups.scope import WITHOUT_GROUPS
from callsheet.managers.sandbox.settings import Isolation

from tests.support.cgroups import FakeCgroups, install

UID = 1000
SESSION = "user.slice/user-1000.slice/session-3.scope"
MANAGER = "user.slice/user-1000.slice/user@1000.service"
HANDED_DOWN = ("cpu", "memory", "pids")
# Says what it was asked, and moves the process as systemd would: $unit is the sixth word behind the call's name.
_BUSCTL = """#!/bin/sh
echo "$@" >> {log}
for word; do case $word in callsheet-*.scope) unit=$word;; esac; done
echo "0::/{parent}/$unit" > {own}.new
mv {made} {tree}/{parent}/$unit
mv {own}.new {own}
"""


class FakeMachine:
    """A machine with cgroup v2 and systemd, where this process is of user 1000 and its group is `at`.

    Attributes:
        root: Its "/".
        tree: Its control groups.
        log: What systemd's programs were asked.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, at: str, *, uid: int = UID) -> None:
        self.root, self.tree, self.log = root, root / "sys/fs/cgroup", root / "log"
        self._own, self._monkeypatch = root / "own", monkeypatch
        for name in ("run/systemd/system", f"run/user/{uid}", "run/dbus", "bin"):
            (root / name).mkdir(parents=True)
        (root / f"run/user/{uid}/bus").touch()
        (root / "run/dbus/system_bus_socket").touch()
        self.log.touch()
        self._own.write_text(f"0::/{at}\n")
        (root / "mounts").write_text(f"31 30 0:27 / {self.tree} rw - cgroup2 cgroup2 rw\n")
        monkeypatch.setattr(layout, "_OWN_GROUPS", self._own)
        monkeypatch.setattr(layout, "_MOUNTS", root / "mounts")
        monkeypatch.setattr(os, "geteuid", lambda: uid)
        monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")

    def has_group(self, at: str, *controllers: str, writable: bool) -> FakeCgroups:
        """Makes the group of this process."""
        group = self.tree / at
        group.mkdir(parents=True)
        fake = FakeCgroups(group, *controllers)
        (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
        install(self._monkeypatch, fake)
        if not writable:
            (group / "cgroup.kill").unlink()
        return fake

    def program(self, name: str, text: str) -> None:
        """Puts a program on PATH."""
        path = self.root / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def systemd_makes_scopes_below(self, parent: str, *controllers: str) -> None:
        """What busctl will do: the new group has these controllers and this process in it."""
        made = self.root / "made"
        (self.tree / parent).mkdir(parents=True, exist_ok=True)
        made.mkdir()
        fake = FakeCgroups(made, *controllers)
        fake.root = self.tree
        (made / "cgroup.procs").write_text(f"{os.getpid()}\n")
        install(self._monkeypatch, fake)
        self.program("busctl", _BUSCTL.format(log=self.log, own=self._own, tree=self.tree, parent=parent, made=made))

    def systemd_says(self, delegate: str) -> None:
        """What systemctl will answer to whether a unit was delegated."""
        self.program("systemctl", f'#!/bin/sh\necho "systemctl $@" >> {self.log}\necho {delegate}\n')

    def asked(self) -> str:
        """What was asked."""
        return self.log.read_text()


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    machine = FakeMachine(tmp_path, monkeypatch, SESSION)
    machine.has_group(SESSION, "memory", "pids", writable=False)
    return machine


def test_a_login_session_gets_a_delegated_scope_of_the_users_systemd(session: FakeMachine) -> None:
    session.systemd_makes_scopes_below(f"{MANAGER}/app.slice", *HANDED_DOWN)
    session.systemd_says("yes")
    told = obtain_groups(session.root)
    assert told.startswith("control groups are in a scope that systemd made; without cpuset; it ends with your last")
    (call, *_) = session.asked().splitlines()
    assert f"--address=unix:path={session.root}/run/user/1000/bus call org.freedesktop.systemd1" in call
    assert f"Delegate b true CollectMode s inactive-or-failed PIDs au 1 {os.getpid()} 0" in call
    found = probe_layout()
    assert found is not None
    assert set(found.controllers) == set(HANDED_DOWN)
    assert (found.core / MANAGERS_GROUP / "cgroup.procs").read_text().split() == [str(os.getpid())]
    assert obtain_groups(session.root) == ""
    assert session.asked().count("StartTransientUnit") == 1


def test_a_user_who_lingers_is_told_of_no_end(session: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    session.systemd_makes_scopes_below(f"{MANAGER}/app.slice", *HANDED_DOWN)
    session.systemd_says("yes")
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="somebody"))
    (session.root / "var/lib/systemd/linger").mkdir(parents=True)
    (session.root / "var/lib/systemd/linger/somebody").touch()
    assert "last login session" not in obtain_groups(session.root)


def test_root_asks_the_machines_systemd_and_stays_in_its_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = "user.slice/user-0.slice/session-1.scope"
    machine = FakeMachine(tmp_path, monkeypatch, at, uid=0)
    machine.has_group(at, "memory", "pids", writable=True)
    machine.systemd_makes_scopes_below("user.slice/user-0.slice", "cpuset", *HANDED_DOWN)
    monkeypatch.setattr(os, "getxattr", lambda path, _: b"1" if "callsheet-" in str(path) else b"0")
    assert obtain_groups(tmp_path) == "control groups are in a scope that systemd made"
    assert f"unix:path={tmp_path}/run/dbus/system_bus_socket" in machine.asked()
    assert machine.asked().rstrip().endswith("Slice s user-0.slice 0")


def test_a_terminals_scope_of_the_users_systemd_is_left_for_one_in_its_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = f"{MANAGER}/work.slice/vte-spawn-1.scope"
    machine = FakeMachine(tmp_path, monkeypatch, at)
    machine.has_group(at, *HANDED_DOWN, writable=True)
    machine.systemd_says("no")
    machine.systemd_makes_scopes_below(f"{MANAGER}/work.slice", *HANDED_DOWN)
    # The fake answers "no" of every unit: what matters is that the terminal's own group was not taken.
    obtain_groups(tmp_path)
    assert "Slice s work.slice 0" in machine.asked()
    assert not (machine.tree / at / MANAGERS_GROUP).exists()
    assert (machine.tree / at / "cgroup.procs").read_text().split() == [str(os.getpid())]


@pytest.mark.parametrize("unit", ["callsheet.service", "run-u7.scope"])
def test_a_delegated_unit_of_the_users_systemd_is_known_though_unmarked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unit: str
) -> None:
    at = f"{MANAGER}/app.slice/{unit}"
    machine = FakeMachine(tmp_path, monkeypatch, at)
    machine.has_group(at, *HANDED_DOWN, writable=True)
    machine.systemd_says("yes")
    assert obtain_groups(tmp_path) == ""
    assert machine.asked() == f"systemctl --user show --property=Delegate --value -- {unit}\n"
    assert (machine.tree / at / MANAGERS_GROUP / "cgroup.procs").read_text().split() == [str(os.getpid())]


def test_an_ordinary_service_of_the_users_systemd_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = f"{MANAGER}/app.slice/callsheet.service"
    machine = FakeMachine(tmp_path, monkeypatch, at)
    machine.has_group(at, *HANDED_DOWN, writable=True)
    machine.systemd_says("no")
    told = obtain_groups(tmp_path)
    assert told.startswith("no control groups: callsheet.service, where this process is, was not delegated to it")
    assert told.endswith(WITHOUT_GROUPS)
    assert "StartTransientUnit" not in machine.asked()
    assert not (machine.tree / at / MANAGERS_GROUP).exists()


@pytest.mark.parametrize(
    ("at", "is_unit"),
    [
        (f"{MANAGER}/app.slice/run-u1.scope", True),
        (f"{MANAGER}/callsheet.service", True),
        (f"{MANAGER}/app.slice/app-a.slice/x.service", True),
        (f"{MANAGER}/app.slice/run-u1.scope/below", False),
        (f"{MANAGER}/app.slice", False),
        (MANAGER, False),
        (SESSION, False),
        ("user.slice/user-7.slice/user@7.service/app.slice/run-u1.scope", False),
        ("system.slice/callsheet.service", False),
    ],
)
def test_only_units_of_the_own_systemd_are_asked_for(monkeypatch: pytest.MonkeyPatch, at: str, is_unit: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: UID)
    assert systemd_of_user(Path("/sys/fs/cgroup") / at) is is_unit


def busctl(text: str) -> Callable[[FakeMachine], object]:
    """Puts a script in the place of busctl."""
    return lambda session: session.program("busctl", f"#!/bin/sh\n{text}\n")


@pytest.mark.parametrize(
    ("lacking", "told"),
    [
        (
            lambda session: (session.root / "run/systemd/system").rmdir(),
            f"no control groups: systemd does not run here; {WITHOUT_GROUPS}",
        ),
        (lambda session: (session.root / "run/user/1000/bus").unlink(), "/run/user/1000/bus is missing"),
        (
            busctl("echo 'Call failed: Access denied' >&2; exit 1"),
            f"no control groups: systemd gives no delegated scope: Call failed: Access denied; {WITHOUT_GROUPS}",
        ),
        (busctl("exit 0"), "systemd did not move this process"),
    ],
    ids=["no systemd", "no bus", "a refusal", "a move that never comes"],
)
def test_the_line_says_why_there_is_no_scope(
    session: FakeMachine, monkeypatch: pytest.MonkeyPatch, lacking: Callable[[FakeMachine], object], told: str
) -> None:
    monkeypatch.setattr("callsheet.managers.sandbox.cgroups.scope._MOVE_S", 0.0)
    lacking(session)
    assert told in obtain_groups(session.root)


def test_without_busctl_the_line_says_so(session: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(session.root / "bin"))
    assert "busctl" in obtain_groups(session.root)


@pytest.mark.parametrize(
    ("file", "text"),
    [("memory.max", "1073741824"), ("memory.high", "5"), ("cpu.max", "50000 100000"), ("cpuset.cpus", "0-1")],
)
def test_limits_that_somebody_set_are_not_escaped(session: FakeMachine, file: str, text: str) -> None:
    (session.tree / SESSION / file).write_text(f"{text}\n")
    session.systemd_makes_scopes_below(f"{MANAGER}/app.slice", *HANDED_DOWN)
    assert f"session-3.scope has a limit, {file} {text.split(maxsplit=1)[0]}" in obtain_groups(session.root)
    assert session.asked() == ""


@pytest.mark.parametrize("at", ["system.slice/cron.service", "system.slice/slurmstepd.scope/job_1/step_0", ""])
def test_what_is_no_scope_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    machine = FakeMachine(tmp_path, monkeypatch, at)
    machine.has_group(at, writable=False) if at else machine.tree.mkdir(parents=True)
    told = obtain_groups(tmp_path)
    assert f"{Path(at).name or 'cgroup'}, where this process is, was not delegated to it" in told
    assert machine.asked() == ""


def test_groups_of_version_1_are_nobodys_to_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = FakeMachine(tmp_path, monkeypatch, SESSION)
    lines: Iterable[str] = (
        f"31 30 0:27 / {machine.tree}/unified rw - cgroup2 cgroup2 rw",
        f"32 30 0:28 / {machine.tree}/memory rw - cgroup cgroup rw,memory",
    )
    (tmp_path / "mounts").write_text("\n".join(lines))
    (tmp_path / "own").write_text(f"1:memory:/{SESSION}\n0::/{SESSION}\n")
    assert "those of version 1 cannot be written" in obtain_groups(tmp_path)


def test_a_scope_without_memory_says_what_is_lost(session: FakeMachine) -> None:
    session.systemd_makes_scopes_below(f"{MANAGER}/app.slice", "pids")
    session.systemd_says("yes")
    assert f"without cpu, cpuset, memory; {WITHOUT_GROUPS}" in obtain_groups(session.root)


@pytest.mark.parametrize("isolation", [Isolation.DOCKER, Isolation.BUBBLEWRAP])
def test_groups_of_an_engine_or_an_operator_need_no_asking(
    session: FakeMachine, monkeypatch: pytest.MonkeyPatch, isolation: Isolation
) -> None:
    session.systemd_makes_scopes_below(f"{MANAGER}/app.slice", *HANDED_DOWN)
    if isolation is Isolation.BUBBLEWRAP:
        monkeypatch.setenv("CALLSHEET_CONTROL_GROUP", "/sys/fs/cgroup/callsheet")
    assert group_note(isolation) == ""
    assert session.asked() == ""
