"""The program that runs buildah: in a user namespace of its own, with one directory of the machine at `PLACE`.

    python -m callsheet.managers.sandbox.files.images.build_child DIRECTORY PROGRAM ARGUMENT...

Root gives it a range of users that nobody else has, so that no step of a Dockerfile is ever the machine's root. For
another user there is no range: all files and processes are that user's. What would change that is answered with a
success that does nothing, as package managers give up otherwise.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Final

from callsheet.managers.sandbox.launcher import kernel
from callsheet.managers.sandbox.walls.seccomp import (
    RETURN_ALLOW,
    check_architecture,
    fail,
    give,
    pack_program,
    return_if_number,
)

PLACE: Final = "/mnt"
# Beyond the users of systems, of subordinate ranges and of systemd's containers.
FIRST_UID: Final = 1_900_000_000
UID_COUNT: Final = 65_536
_CALLS_ON_USERS_X86_64: Final = {
    "chown": 92,
    "fchown": 93,
    "fchownat": 260,
    "lchown": 94,
    "setgid": 106,
    "setgroups": 116,
    "setregid": 114,
    "setresgid": 119,
    "setresuid": 117,
    "setreuid": 113,
    "setuid": 105,
}
_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _SECCOMP_MODE_FILTER = 1, 22, 38, 2
_library = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    """The kernel's `struct sock_fprog`."""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def pretending_filter() -> bytes:
    """Returns a seccomp filter by which calls that change users succeed and do nothing; for x86_64."""
    program = check_architecture()
    for number in _CALLS_ON_USERS_X86_64.values():
        program += return_if_number(number, fail(0))
    return pack_program([*program, give(RETURN_ALLOW)])


def _end_with_parent() -> None:
    kernel.check(_library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def _pretend() -> None:
    content = pretending_filter()
    program = _Program(len(content) // 8, content)
    kernel.check(_library.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    kernel.check(_library.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def _show(directory: str) -> None:
    kernel.mount(None, "/", None, kernel.MS_REC | kernel.MS_SLAVE)
    kernel.mount(directory, PLACE, None, kernel.MS_BIND | kernel.MS_REC)


def _become(directory: str, command: list[str], as_root: bool, entered: int, mapped: int) -> None:
    """In the child: enters the namespaces, waits for its users, and becomes the program."""
    _end_with_parent()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS)
    os.write(entered, b".")
    if not os.read(mapped, 1):
        os._exit(1)
    if as_root:
        os.setgroups([])
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)
    # A change of users undid it.
    _end_with_parent()
    if not as_root:
        _show(directory)
        _pretend()
    os.execv(command[0], command)


def _map_users(child: int, as_root: bool) -> None:
    if as_root:
        users = groups = f"0 {FIRST_UID} {UID_COUNT}"
    else:
        users, groups = f"0 {os.geteuid()} 1", f"0 {os.getegid()} 1"
        kernel.write(f"/proc/{child}/setgroups", "deny")
    kernel.write(f"/proc/{child}/uid_map", users)
    kernel.write(f"/proc/{child}/gid_map", groups)


def run(directory: str, command: list[str]) -> int:
    """Runs a program to its end; returns its exit code."""
    as_root = os.geteuid() == 0
    _end_with_parent()
    if as_root:
        # Before its users are others, as those may not enter the directories on the way.
        kernel.unshare(kernel.CLONE_NEWNS)
        _show(directory)
    entered_in, entered_out = os.pipe()
    mapped_in, mapped_out = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(entered_in)
        os.close(mapped_out)
        try:
            _become(directory, command, as_root, entered_out, mapped_in)
        except BaseException as error:
            os.write(2, f"cannot begin a build: {error}\n".encode())
        os._exit(1)
    os.close(entered_out)
    os.close(mapped_in)
    if os.read(entered_in, 1):
        _map_users(child, as_root)
        os.write(mapped_out, b".")
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
