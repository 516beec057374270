"""Writable file systems for one sandbox: overlays of prepared directories with a memory file system of a size.

They are mounted in a mount namespace of the sandbox's own, so that they end with it whatever happens. A request:

    {"base": directory to mount on, "size": bytes, "inodes": N, "overlays": [
        {"name": N, "layers": [directories, the lowest first], "mode": M, "directories": {name: mode, ...},
         "host_name": the sandbox's, or "" where it has other files for its names}, ...]}

Each overlay is found at BASE/NAME/merged; what is changed in it lies in BASE/NAME/upper, and a descriptor of BASE is
sent over the socket that came with the request. `directories` are made anew if anything else has their names.

As root, layers belong to root on disk, and an idmapped mount shows them as the pool user's: the sandbox may change all
of its view while the layers stay as they are. Otherwise the layers must belong to the manager's user, and a user
namespace allows the mounts.
"""

from __future__ import annotations

import array
import os
import select
import socket
import stat
import tempfile

from . import kernel
from .names import lay_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SOME_USER = 70_000
# An overlay that is never written needs two directories.
EMPTY = "/mnt/empty"
SYSTEM = "/usr"


def mount_overlays(request: dict[str, Any], uid: int | None, report: socket.socket) -> None:
    """Mounts what a request describes, in new namespaces of this process, and sends a descriptor of it.

    Args:
        uid: The pool user that the sandbox will run as; None for the manager's own, who is not root.

    Raises:
        OSError: The kernel refuses.
    """
    owner = (os.geteuid(), os.getegid()) if uid is None else (uid, uid)
    if uid is None:
        kernel.enter_user_namespace(*owner)
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.leave_hosts_mounts()
    base = request["base"]
    options = f"mode=0755,size={request['size']},nr_inodes={request['inodes']}"
    kernel.mount("tmpfs", base, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    ids = _namespace_of(uid) if uid is not None else None
    try:
        for overlay in request["overlays"]:
            _mount_overlay(os.path.join(base, overlay["name"]), overlay, ids, owner)
    finally:
        if ids is not None:
            os.close(ids)
    place = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        report.sendmsg([b"mounted"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [place]))])
    finally:
        os.close(place)


def separate(directories: list[str]) -> None:
    """Shows directories through a read-only overlay each, in a mount namespace of this process's own.

    They are the same files for whoever reads them, and locks on them are this sandbox's own. A directory with mounts
    below it is left alone, as an overlay would hide those.

    Raises:
        OSError: The kernel refuses.
    """
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        points = [line.split()[4] for line in file]
    for directory in directories:
        if not any(point.startswith(f"{directory}/") for point in points):
            flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
            kernel.mount("overlay", directory, "overlay", flags, f"lowerdir={directory}:{EMPTY}")


def _mount_overlay(place: str, overlay: dict[str, Any], ids: int | None, owner: tuple[int, int]) -> None:
    os.mkdir(place, 0o755)
    for name in ("upper", "work", "merged", "empty"):
        os.mkdir(os.path.join(place, name), 0o755)
    # The root of an overlay looks as its uppermost directory does.
    os.chmod(os.path.join(place, "upper"), overlay["mode"])
    for name in ("upper", "work"):
        os.chown(os.path.join(place, name), *owner)
    lowers = ["empty"]
    for index, layer in enumerate(overlay["layers"]):
        target = os.path.join(place, str(index))
        os.mkdir(target, 0o755)
        clone = kernel.clone_mount(layer)
        try:
            if ids is not None:
                kernel.show_ids_of(clone, ids)
            kernel.attach(clone, target)
        finally:
            os.close(clone)
        lowers.insert(0, str(index))
    merged = os.path.join(place, "merged")
    # Relative: all options together must fit into a page, and an image may have more than a hundred layers.
    options = f"lowerdir={':'.join(lowers)},upperdir=upper,workdir=work,index=off,metacopy=off"
    if ids is None:
        options += ",userxattr"
    former = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.chdir(place)
        kernel.mount("overlay", merged, "overlay", kernel.MS_NOSUID | kernel.MS_NODEV, options)
    finally:
        os.fchdir(former)
        os.close(former)
    for name, mode in overlay["directories"].items():
        _ensure_directory(os.path.join(merged, name), mode, owner)
    if overlay["host_name"]:
        lay_names(merged, overlay["host_name"], owner)


def _ensure_directory(path: str, mode: int, owner: tuple[int, int]) -> None:
    """Makes a directory; what is there under its name and is none, such as a link that leads elsewhere, is removed.

    One that its owner took the rights to is given them back: a sandbox begins there.
    """
    if os.path.lexists(path):
        status = os.lstat(path)
        if stat.S_ISDIR(status.st_mode):
            if status.st_mode & 0o700 != 0o700:
                os.chmod(path, stat.S_IMODE(status.st_mode) | 0o700)
            return
        os.unlink(path)
    os.mkdir(path)
    os.chown(path, *owner)
    os.chmod(path, mode)


def _namespace_of(uid: int) -> int:
    """Returns a descriptor of a user namespace that maps root to one user; a child holds it open for a moment."""
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWUSER)
            os.write(telling, b"1")
            select.select([], [], [])
        finally:
            os._exit(1)
    os.close(telling)
    try:
        if not os.read(told, 1):
            raise OSError("a user namespace could not be made")
        kernel.write(f"/proc/{child}/uid_map", f"0 {uid} 1")
        kernel.write(f"/proc/{child}/gid_map", f"0 {uid} 1")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(told)
        os.kill(child, 9)
        os.waitpid(child, 0)


def probe_separate() -> str:
    """Tries to show the system through an overlay in a child process; returns why that does not work, or nothing."""
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            kernel.unshare(kernel.CLONE_NEWNS)
            kernel.leave_hosts_mounts()
            kernel.mount("tmpfs", os.path.dirname(EMPTY), "tmpfs", 0, "size=1m")
            os.mkdir(EMPTY)
            separate([SYSTEM])
            os.listdir(SYSTEM)
        except OSError as error:
            os.write(telling, str(error).encode())
        finally:
            os._exit(0)
    os.close(telling)
    reason = os.read(told, 4096).decode(errors="replace")
    os.waitpid(child, 0)
    return reason


def probe_overlays() -> str:
    """Tries to mount an overlay of one layer in a child process; returns why that does not work, or nothing."""
    with tempfile.TemporaryDirectory(prefix="callsheet-overlay-") as directory:
        os.chmod(directory, 0o755)
        layer, base = os.path.join(directory, "layer"), os.path.join(directory, "base")
        os.mkdir(layer)
        os.mkdir(base)
        with open(os.path.join(layer, "file"), "w", encoding="ascii") as file:
            file.write("below")
        told, telling = os.pipe()
        child = os.fork()
        if child == 0:
            _try_stack(base, layer, telling)
        os.close(telling)
        reason = os.read(told, 4096).decode(errors="replace")
        os.waitpid(child, 0)
    return "" if reason == "works" else reason or "nothing was told"


def _try_stack(base: str, layer: str, telling: int) -> None:
    overlay = {"name": "trial", "layers": [layer], "mode": 0o755, "directories": {"new": 0o755}, "host_name": ""}
    uid = SOME_USER if os.geteuid() == 0 else None
    own, _other = socket.socketpair()
    try:
        mount_overlays({"base": base, "size": 1 << 20, "inodes": 100, "overlays": [overlay]}, uid, own)
        path = os.path.join(base, "trial", "merged", "file")
        if uid is not None:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
        with open(path, "a", encoding="ascii") as file:
            file.write(" above")
        os.write(telling, b"works")
    except OSError as error:
        os.write(telling, str(error).encode())
    finally:
        os._exit(0)
