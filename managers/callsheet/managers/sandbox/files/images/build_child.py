"""The program that runs buildah: in a user namespace of its own, with one directory of the machine at `PLACE`.

    python -m callsheet.managers.sandbox.files.images.build_child DIRECTORY NETWORK PROGRAM ARGUMENT...

NETWORK is `MACHINE` for the machine's, or the number of a socket. Then the program has a network of its own with
nothing but a loopback, and a listening socket on `PROXY_PORT` there is sent to whoever has the other end. The program
is bwrap, which shows buildah as little of the machine as it needs.

Root gives it a range of users that nobody else has, so that no step of a Dockerfile is ever the machine's root. For
another user there is no range: all files and processes are that user's. What would change that is answered with a
success that does nothing, as package managers give up otherwise.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from typing import Final

from callsheet.managers.sandbox.launcher import kernel
from callsheet.managers.sandbox.network.destinations import LOOPBACK, PROXY_PORT
from callsheet.managers.sandbox.walls.bpf import check_architecture, fail, give, pack_program, return_if_number
from callsheet.managers.sandbox.walls.seccomp import RETURN_ALLOW

PLACE: Final = "/mnt"
MACHINE: Final = "machine"
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
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
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


def _open_door(channel: int) -> None:
    with socket.socket() as listener, socket.socket(fileno=channel) as given:
        fcntl.ioctl(listener, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", _IFF_UP))
        listener.bind((LOOPBACK, PROXY_PORT))
        listener.listen()
        socket.send_fds(given, [b"."], [listener.fileno()])


def _become(directory: str, network: str, command: list[str], entered: int, mapped: int) -> None:
    """In the child: enters the namespaces, waits for its users, and becomes the program."""
    as_root = os.geteuid() == 0
    _end_with_parent()
    kernel.unshare(kernel.CLONE_NEWUSER | kernel.CLONE_NEWNS | (0 if network == MACHINE else kernel.CLONE_NEWNET))
    if network != MACHINE:
        _open_door(int(network))
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


def run(directory: str, network: str, command: list[str]) -> int:
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
            _become(directory, network, command, entered_out, mapped_in)
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
    sys.exit(run(sys.argv[1], sys.argv[2], sys.argv[3:]))
