"""The system calls around mounts that Python's standard library does not have."""

from __future__ import annotations

import ctypes
import fcntl
import os
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWIPC, CLONE_NEWUSER, CLONE_NEWNET = 0x08000000, 0x10000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 0x1, 0x2, 0x4, 0x8, 0x20
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
NS_GET_USERNS = 0xB701
AT_EMPTY_PATH = 0x1000
OPEN_TREE_CLONE, OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
MOVE_MOUNT_F_EMPTY_PATH = 4
MOUNT_ATTR_IDMAP = 0x00100000
RESOLVE_NO_MAGICLINKS, RESOLVE_IN_ROOT = 0x02, 0x10
# The same on every architecture but alpha.
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
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


def enter_user_namespace(user: int, group: int) -> None:
    """Enters a user namespace that knows this process's user and group, by these ids, and in which it may mount."""
    own_user, own_group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{user} {own_user} 1")
    write("/proc/self/gid_map", f"{group} {own_group} 1")


def write(path: str, text: str) -> None:
    """Writes a file that is there."""
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


class Visit:
    """A visit of this process, which must have one thread, to the namespaces of another."""

    def __init__(self, pid: int) -> None:
        """Enters the mounts and the IPC of a process.

        Whoever is not root enters the user namespace that owns them before, in which its maker has all rights.
        """
        kinds = {"mnt": CLONE_NEWNS, "ipc": CLONE_NEWIPC}
        opened = {kind: os.open(f"/proc/{pid}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC) for kind in kinds}
        self._owner = fcntl.ioctl(opened["mnt"], NS_GET_USERNS)
        self._entered = False
        if os.geteuid() != 0:
            self.own()
        for kind, flag in kinds.items():
            check(_library.setns(opened[kind], flag), f"the sandbox's {kind} namespace")

    def own(self) -> None:
        """Enters the user namespace that owns the others as its root, to whom their settings belong."""
        if self._entered:
            # The kernel lets nobody enter the one that it is in.
            return
        self._entered = True
        check(_library.setns(self._owner, CLONE_NEWUSER), "the sandbox's user namespace")
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)


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


def open_in(root: int, path: str, flags: int) -> int:
    """Opens what has a path for whoever has a directory as the root: no link on the way leads out (Linux 5.6)."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS)
    return check(_library.syscall(_OPENAT2, root, os.fsencode(path), how, len(how)), path)


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
