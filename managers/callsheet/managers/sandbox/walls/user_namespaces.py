"""Finds the setting of the kernel that forbids bubblewrap's namespaces, and describes it with its cure."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

# By setting: the value that forbids, and one that allows. The last two are Debian's and Ubuntu's own.
_SETTINGS: Final[Mapping[str, tuple[str, str]]] = {
    **{f"user.max_{kind}_namespaces": ("0", "65536") for kind in ("user", "pid", "net", "ipc", "uts", "mnt")},
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}

_BY_PROFILE = ", and so does a profile of AppArmor for bwrap that has `userns`"


def forbidden_namespaces(said: str, root: Path = Path("/")) -> str:
    """Returns what bubblewrap said as it failed, behind the settings that forbid what it needs if there are any.

    Args:
        said: Its standard error; the words of other programs are returned as they are.
        root: Where "proc" is.
    """
    if "bwrap: " not in said:
        return said
    found = []
    for name, (forbids, allows) in _SETTINGS.items():
        with suppress(OSError):
            if (root / "proc/sys" / name.replace(".", "/")).read_text().strip() == forbids:
                profile = _BY_PROFILE if "apparmor" in name else ""
                found.append(f"{name} is {forbids}; as root, `sysctl -w {name}={allows}` allows them{profile}")
    return f"this machine forbids user namespaces: {'; '.join(found)} ({said})" if found else said
