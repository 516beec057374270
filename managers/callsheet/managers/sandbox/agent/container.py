"""Does in a container the tasks that bwrap does elsewhere: reaches the manager and installs the filter."""

from __future__ import annotations

import ctypes
import os
import socket

PR_SET_SECCOMP = 22
PR_SET_NO_NEW_PRIVS = 38
SECCOMP_MODE_FILTER = 2
INSTRUCTION_BYTES = 8


def connect(path: str) -> socket.socket:
    """Connects to the manager's socket. In a directory that was opened, its path may have any length."""
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    os.chdir(os.path.dirname(path))
    manager.connect(os.path.basename(path))
    os.chdir("/")
    return manager


class Program(ctypes.Structure):
    """The kernel's struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def install_filter(path: str) -> None:
    """Installs a seccomp filter, a file of classic BPF instructions, for this process and all that it starts."""
    library = ctypes.CDLL(None, use_errno=True)
    with open(path, "rb") as file:
        instructions = file.read()
    program = Program(len(instructions) // INSTRUCTION_BYTES, instructions)
    for arguments in (
        (PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if library.prctl(*arguments) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), path)
