"""The system calls around mounts that Python's standard library does not have."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_BIND, MS_REC, MS_SLAVE = 0x20, 0x1000, 0x4000, 0x80000
NS_GET_USERNS = 0xB701
AT_EMPTY_PATH = 0x1000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4
MOUNT_ATTR_IDMAP = 0x00100000
# The same on every architecture but alpha.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_AT_FDCWD = -100

_library = ctypes.CDLL(None, use_errno=True)
_library.syscall.restype = ctypes.c_long


def check(result: int, what: str) -> int:
    """Returns the result of a call; raises OSError naming `what` failed."""
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    """Moves this process into new namespaces."""
    check(_library.unshare(flags), "new namespaces")


def enter_mounts(pid: int) -> None:
    """Moves this process, which must have one thread, into the mount namespace of another.

    Whoever is not root enters the user namespace that owns it as well, in which its maker has all rights.
    """
    mounts = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    if os.geteuid() != 0:
        check(_library.setns(fcntl.ioctl(mounts, NS_GET_USERNS), CLONE_NEWUSER), "the sandbox's user namespace")
    check(_library.setns(mounts, CLONE_NEWNS), "the sandbox's mount namespace")


def mount(source: str | None, target: str, kind: str | None, flags: int, options: str = "") -> None:
    """Mounts as mount(2) does."""
    result = _library.mount(
        os.fsencode(source) if source is not None else None,
        os.fsencode(target),
        kind.encode() if kind is not None else None,
        ctypes.c_ulong(flags),
        os.fsencode(options) if options else None,
    )
    check(result, f"mounting {kind or source} on {target}")


def leave_hosts_mounts() -> None:
    """Keeps mounts of this process's new namespace out of the one it came from."""
    mount(None, "/", None, MS_REC | MS_SLAVE)


def clone_mount(path: str) -> int:
    """Returns a descriptor of a copy of the mount that shows a directory; nothing is attached yet."""
    flags = OPEN_TREE_CLONE | OPEN_TREE_CLOEXEC
    result = _library.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), ctypes.c_uint(flags))
    return check(result, f"the directory {path}")


def show_ids_of(clone: int, user_namespace: int) -> None:
    """Lets a copy of a mount show owners as a user namespace maps them (Linux 5.12; overlays on it: 5.19)."""
    attributes = struct.pack("QQQQ", MOUNT_ATTR_IDMAP, 0, 0, user_namespace)
    result = _library.syscall(_MOUNT_SETATTR, clone, b"", AT_EMPTY_PATH, attributes, len(attributes))
    check(result, "an idmapped mount")


def attach(clone: int, target: str) -> None:
    """Attaches a copy of a mount to a directory."""
    result = _library.syscall(
        _MOVE_MOUNT, clone, b"", _AT_FDCWD, os.fsencode(target), ctypes.c_uint(MOVE_MOUNT_F_EMPTY_PATH)
    )
    check(result, f"a mount on {target}")
