"""Asks systemd for groups where this process has none: a delegated scope of its own, as `systemd-run --scope` makes.

The group of a login session is root's. systemd makes a scope and moves this process there. Only a process of an
ordinary scope asks: what an operator runs as a service, or limits, stays where it is.
"""

from __future__ import annotations

import os
import pwd
import secrets
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from callsheet.managers.sandbox.cgroups.delegation import ask_systemd, systemd_of_user
from callsheet.managers.sandbox.cgroups.layout import CONTROLLERS, own_layout, probe_layout

WITHOUT_GROUPS: Final = "memory is bounded for each process and not for a sandbox, which books all of it for its life"
"""Loss of bounds if no groups bound memory, as a clause."""

_MOVE_S = 20.0
_LOOK_S = 0.01
_MANAGER = ("org.freedesktop.systemd1", "/org/freedesktop/systemd1", "org.freedesktop.systemd1.Manager")
_UNLIMITED: Final[Mapping[str, list[str]]] = {
    "memory.max": ["max"],
    "memory.high": ["max"],
    "cpu.max": ["max"],
    "cpuset.cpus": [],
}


def obtain_groups(root: Path = Path("/")) -> str:
    """Sees to it that this process may make groups that bound memory, as far as systemd gives any. May block for 40 s.

    Args:
        root: Where "run" and "var" are.

    Returns:
        What users are told: why there are none and what is lost, or which scope systemd made. Empty if there were some.
    """
    layout, own = probe_layout(), own_layout()
    if layout is not None and "memory" in layout.controllers:
        return ""
    if own is None or own.controllers:
        return f"no control groups: those of version 1 cannot be written here; {WITHOUT_GROUPS}"
    if problem := _why_not_asked(own.core, root) or _enter_scope(own.core, root):
        return f"no control groups: {problem}; {WITHOUT_GROUPS}"
    layout = probe_layout()
    lacking = [name for name in CONTROLLERS if layout is None or name not in layout.controllers]
    words = ["control groups are in a scope that systemd made"]
    if lacking:
        words.append(f"without {', '.join(lacking)}")
    if "memory" in lacking:
        words.append(WITHOUT_GROUPS)
    lingers = root / "var/lib/systemd/linger" / pwd.getpwuid(os.geteuid()).pw_name
    if os.geteuid() != 0 and not systemd_of_user(own.core) and not lingers.exists():
        words.append("it ends with your last login session (not so after `loginctl enable-linger`)")
    return "; ".join(words)


def _why_not_asked(group: Path, root: Path) -> str:
    """As a clause; empty where systemd may be asked."""
    if not (root / "run/systemd/system").is_dir():
        return "systemd does not run here"
    if group.suffix != ".scope":
        return f"{group.name or '/'}, where this process is, was not delegated to it (in a unit, by Delegate=yes)"
    for name, unlimited in _UNLIMITED.items():
        file = group / name
        if file.exists() and (limit := file.read_text().split()[:1]) != unlimited:
            return f"{group.name} has a limit, {name} {limit[0]}, which a scope beside it would not have"
    bus = _bus(root)
    return "" if bus.exists() else f"{bus} is missing, by which systemd is asked (packages dbus, dbus-user-session)"


def _bus(root: Path) -> Path:
    return root / ("run/dbus/system_bus_socket" if os.geteuid() == 0 else f"run/user/{os.geteuid()}/bus")


def _enter_scope(group: Path, root: Path) -> str:
    """Has systemd move this process into a new scope; returns what went wrong, as a clause."""
    unit = f"callsheet-{os.getpid()}-{secrets.token_hex(4)}.scope"
    properties = [
        *(("Description", "s", "Callsheet"), ("Delegate", "b", "true"), ("CollectMode", "s", "inactive-or-failed")),
        ("PIDs", "au", "1", str(os.getpid())),
    ]
    if os.geteuid() == 0 or systemd_of_user(group):
        # The limits of its slice hold on. A login session's slice is none of the user's systemd.
        properties.append(("Slice", "s", group.parent.name))
    words = [word for one in properties for word in one]
    call = ["StartTransientUnit", "ssa(sv)a(sa(sv))", unit, "fail", str(len(properties)), *words, "0"]
    try:
        ask_systemd("busctl", f"--address=unix:path={_bus(root)}", "call", *_MANAGER, *call)
    except (OSError, subprocess.SubprocessError) as error:
        return f"systemd gives no delegated scope: {(getattr(error, 'stderr', '') or str(error)).strip()}"
    # The answer comes before the move, and the kernel announces none.
    deadline = time.monotonic() + _MOVE_S
    while (now := own_layout()) is None or now.core.name != unit:
        if time.monotonic() > deadline:
            return f"systemd did not move this process into {unit} within {_MOVE_S:g} s"
        time.sleep(_LOOK_S)
    return ""
