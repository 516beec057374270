"""What this kernel has and forbids of the walls around sandboxes, in words with the cure."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

# The same number on every architecture.
_CREATE_RULESET = 444
_ASK_VERSION = 1
# The first that forbids nothing which commands do, see `agent/domains.py`.
_LEAST_VERSION = 2


@cache
def landlock_version() -> int:
    """Returns the version of the kernel's Landlock; 0 where it is off or too old to be used."""
    library = ctypes.CDLL(None, use_errno=True)
    version = int(library.syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint(_ASK_VERSION)))
    return version if version >= _LEAST_VERSION else 0


def landlock_capabilities() -> dict[str, str]:
    """Returns what a registration says of it: "yes" or "no", whether each command is in a domain of its own."""
    return {"landlock": "yes" if landlock_version() else "no"}


# Which setting of the kernel forbids the namespaces that bubblewrap makes, in words with the cure.

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
