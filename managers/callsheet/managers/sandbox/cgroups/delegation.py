"""Makes a delegated version 2 group ready to have sandboxes below it.

The kernel lets a group hand controllers down only while no process is directly inside it ("no internal processes",
kernel documentation cgroup-v2). So the processes of a delegated group, which are this manager and whatever runs beside
it in the same unit or container, are moved into one group below it first. systemd never does that and forbids it for
units that it did not delegate; those are left as they are.

A user owns the groups of all units of their own systemd, delegated or not, and older releases (252) mark none of them.
So their systemd itself is asked there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Collection, Sequence
from pathlib import Path

import structlog
from callsheet.managers.sandbox.cgroups import files

# Where the processes of a delegated group are moved to.
MANAGERS_GROUP = "callsheet-managers"

# systemd marks what it delegated, for root and for users.
_DELEGATION_MARKS = ("trusted.delegate", "user.delegate")
# A process may fork between a look and its move.
_MOST_LOOKS = 20
_ANSWER_S = 20.0

_log = structlog.get_logger(__name__)


def enable_controllers(group: Path, wanted: Sequence[str], *, given: bool = False) -> Collection[str]:
    """Hands controllers of a version 2 group down to the groups below it, as far as it may; returns those that are.

    Args:
        group: Directory in the version 2 tree.
        wanted: Controllers by name.
        given: Whether an operator said that the group is this manager's; otherwise it must be marked as delegated.
    """
    available = _words(group / "cgroup.controllers")
    wanted = [name for name in wanted if name in available]
    if not wanted or set(wanted) <= _words(group / "cgroup.subtree_control"):
        return wanted
    if _is_occupied(group) and not ((given or is_delegated(group)) and _move_down(group)):
        return [name for name in wanted if name in _words(group / "cgroup.subtree_control")]
    for name in wanted:
        # One by one: one that is refused must not cost the others.
        try:
            files.write_setting(group / "cgroup.subtree_control", f"+{name}")
        except OSError as error:
            _log.info("controller_not_enabled", group=str(group), controller=name, error=str(error))
    return [name for name in wanted if name in _words(group / "cgroup.subtree_control")]


def is_delegated(group: Path) -> bool:
    """Returns whether a version 2 group was handed over: by systemd, or as the root of a container's own view."""
    for mark in _DELEGATION_MARKS:
        with contextlib.suppress(OSError):
            if os.getxattr(group, mark) == b"1":
                return True
    return group.is_mount() or (systemd_of_user(group) and _says_delegated(group.name))


def systemd_of_user(group: Path) -> bool:
    """Returns whether a group is that of a unit of this user's own systemd, and no group below one."""
    manager = f"user@{os.geteuid()}.service"
    if manager not in group.parts:
        return False
    *slices, unit = group.parts[group.parts.index(manager) + 1 :] or ("",)
    return unit.endswith((".scope", ".service")) and all(name.endswith(".slice") for name in slices)


def ask_systemd(*command: str) -> str:
    """Runs one of systemd's programs and returns what it prints; OSError or SubprocessError where it fails."""
    return subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "XDG_RUNTIME_DIR": f"/run/user/{os.geteuid()}"},
        timeout=_ANSWER_S,
    ).stdout.strip()


def _says_delegated(unit: str) -> bool:
    try:
        return ask_systemd("systemctl", "--user", "show", "--property=Delegate", "--value", "--", unit) == "yes"
    except (OSError, subprocess.SubprocessError) as error:
        _log.warning("delegation_not_known", unit=unit, error=str(error))
    return False


def _is_occupied(group: Path) -> bool:
    """Returns whether processes directly inside a group keep it from handing controllers down.

    The machine's root group is exempt.
    """
    return (group / "cgroup.type").exists() and bool((group / "cgroup.procs").read_text().split())


def _move_down(group: Path) -> bool:
    """Moves the processes of a group into one below it; returns whether all went."""
    below = group / MANAGERS_GROUP
    try:
        if not below.exists():
            files.make_group(below)
        for _ in range(_MOST_LOOKS):
            processes = (group / "cgroup.procs").read_text().split()
            if not processes:
                return True
            for process in processes:
                with contextlib.suppress(ProcessLookupError):
                    files.write_setting(below / "cgroup.procs", process)
    except OSError as error:
        _log.warning("delegated_group_not_emptied", group=str(group), error=str(error))
    return False


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError:
        return set()
