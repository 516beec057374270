"""Builds the seccomp filter of a sandbox as classic BPF, without libseccomp.

The filter allows by default and refuses what a namespace does not contain: system calls that reach the kernel's
configuration, other namespaces or other processes' memory, and socket families that lead out of the network namespace
(AF_VSOCK reaches the host of a virtual machine even from an empty one). System call numbers belong to an architecture,
so an architecture without a table is refused.
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from callsheet.managers.sandbox.walls.bpf import (
    Instruction,
    Opcode,
    check_architecture,
    fail,
    give,
    load,
    on_number,
    pack_program,
    return_if_number,
)

RETURN_ALLOW: Final = 0x7FFF0000
RETURN_USER_NOTIFY: Final = 0x7FC00000

OFFSET_ARGUMENT_0: Final = 16
OFFSET_ARGUMENT_1: Final = 24
OFFSET_ARGUMENT_2: Final = 32
OFFSET_ARGUMENT_3: Final = 40
HIGH_HALF: Final = 4

# CLONE_NEWTIME, NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_CLONE_NAMESPACE_FLAGS = 0x00000080 | 0x7E020000

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK = 1, 2, 10, 16
ALLOWED_SOCKET_FAMILIES = (_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK)

_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_F_SETSIG, _F_SETLEASE, _PR_SET_PDEATHSIG, _PR_SCHED_CORE, _SIGCONT = 10, 1024, 1, 62, 18
_POSIX_FADV_DONTNEED, _MADV_MERGEABLE = 4, 12
_MAP_GROWSDOWN, _MAP_HUGETLB, _MFD_HUGETLB, _SHM_HUGETLB = 0x100, 0x40000, 4, 0o4000
_SOL_SOCKET, _SO_ATTACH_FILTER, _SO_ATTACH_REUSEPORT_CBPF = 1, 26, 51

# x86_64 numbers of what is always refused with EPERM.
_REFUSED_X86_64: Mapping[str, int] = MappingProxyType(
    {
        "acct": 163,
        "add_key": 248,
        "adjtimex": 159,
        "bpf": 321,
        "clock_adjtime": 305,
        "clock_settime": 227,
        "delete_module": 176,
        "fanotify_init": 300,
        "finit_module": 313,
        "fsconfig": 431,
        "fsmount": 432,
        "fsopen": 430,
        "fspick": 433,
        "init_module": 175,
        "ioperm": 173,
        "iopl": 172,
        "kcmp": 312,
        "kexec_file_load": 320,
        "kexec_load": 246,
        "keyctl": 250,
        "lookup_dcookie": 212,
        "modify_ldt": 154,
        "mount": 165,
        "mount_setattr": 442,
        "move_mount": 429,
        "name_to_handle_at": 303,
        "open_by_handle_at": 304,
        "open_tree": 428,
        "perf_event_open": 298,
        "personality": 135,
        "pidfd_getfd": 438,
        "pivot_root": 155,
        "process_madvise": 440,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "ptrace": 101,
        "quotactl": 179,
        "quotactl_fd": 443,
        "reboot": 169,
        "request_key": 249,
        "setdomainname": 171,
        "sethostname": 170,
        "setns": 308,
        "settimeofday": 164,
        "swapoff": 168,
        "swapon": 167,
        "syslog": 103,
        "umount2": 166,
        "unshare": 272,
        "userfaultfd": 323,
        "vhangup": 153,
    }
)
# Refused with ENOSYS, which makes programs take their older way: clone's flags can be inspected and clone3's cannot;
# contexts of asynchronous I/O, message queues and secret memory are bounded for all sandboxes together at best.
_ABSENT_X86_64: Mapping[str, int] = MappingProxyType(
    {
        "clone3": 435,
        "io_setup": 206,
        "io_uring_setup": 425,
        "io_uring_enter": 426,
        "io_uring_register": 427,
        "memfd_secret": 447,
        "mq_open": 240,
    }
)
# From open_tree_attr on they are newer than these tables, and do not exist either.
_FIRST_UNKNOWN = 467
# Answered as done: they would write out what the whole machine has changed, and a sandbox's own files are in memory.
_DONE_X86_64: Mapping[str, int] = MappingProxyType({"sync": 162, "syncfs": 306})
# The same where nothing else bounds them, see `Unbounded`.
_TIMERS: Mapping[str, int] = MappingProxyType({"timer_create": 222})
_MEMORY_FILES: Mapping[str, int] = MappingProxyType({"memfd_create": 319})
_SYSTEM_V: Mapping[str, int] = MappingProxyType({"msgget": 68, "semget": 64, "shmget": 29})
_SCHED_SETAFFINITY, _CLONE, _IOCTL, _SOCKET, _SOCKETPAIR = 203, 56, 16, 41, 53
_MMAP, _FCNTL, _PRCTL, _SETSOCKOPT, _FADVISE64, _MADVISE = 9, 72, 157, 54, 221, 28
# By which of their arguments, in order, they ask for huge pages.
_OF_HUGE_PAGES = ((OFFSET_ARGUMENT_1, 319, _MFD_HUGETLB), (OFFSET_ARGUMENT_2, 29, _SHM_HUGETLB))

# What changes the limits, the priority or the schedule of a process that is named by its number, 0 for the caller. The
# agent has the user of all others, and nothing else keeps them from slowing it down until it is given up.
_OF_CALLER_ONLY: Mapping[str, int] = MappingProxyType(
    {"sched_setattr": 314, "sched_setparam": 142, "sched_setscheduler": 144}
)
# By kind of target and target: the last kind is a user, which is all processes of the sandbox.
_OF_CALLER_BY_KIND: Mapping[str, tuple[int, int]] = MappingProxyType({"ioprio_set": (251, 3), "setpriority": (141, 2)})
_PRLIMIT64 = 302
_FIRST_PROCESS = 1


class UnsupportedArchitectureError(RuntimeError):
    """There is no table of system calls for this machine."""


@dataclass(frozen=True, slots=True)
class Unbounded:
    """Resources that only the filter bounds on this machine.

    Attributes:
        memory: Memory that is no process's own: no group counts it. Anonymous shared mappings are left to the agent,
            see `agent/shared_memory.py`.
        waking: What is paused is stopped by a signal, which another signal undoes.
        system_v: The number and size of System V objects.
    """

    memory: bool = False
    waking: bool = False
    system_v: bool = False


def build_filter(*, forbid_affinity: bool, unbounded: Unbounded = Unbounded(), machine: str | None = None) -> bytes:
    """Returns the filter in the form that `bwrap --seccomp` and prctl take.

    Args:
        forbid_affinity: Refuse sched_setaffinity, where affinity is what keeps a sandbox on its cores.
        unbounded: What else is to be refused.
        machine: Architecture as `uname -m` names it; by default that of this machine.

    Raises:
        UnsupportedArchitectureError: There is no table for the architecture.
    """
    return pack_program(build_program(forbid_affinity, machine or platform.machine(), unbounded))


def build_program(forbid_affinity: bool, machine: str, unbounded: Unbounded = Unbounded()) -> Sequence[Instruction]:
    """Returns the instructions of `build_filter`; raises what it raises."""
    if machine != "x86_64":
        raise UnsupportedArchitectureError(f"no seccomp table for the architecture {machine!r}; known: 'x86_64'")
    refused = dict(_REFUSED_X86_64)
    if forbid_affinity:
        refused["sched_setaffinity"] = _SCHED_SETAFFINITY
    absent = {
        **_ABSENT_X86_64,
        **(_MEMORY_FILES if unbounded.memory else {}),
        **(_TIMERS if unbounded.waking else {}),
        **(_SYSTEM_V if unbounded.system_v else {}),
    }
    return [
        *check_architecture(),
        Instruction(Opcode.JUMP_GREATER_OR_EQUAL, _FIRST_UNKNOWN, 0, 1),
        give(fail(errno.ENOSYS)),
        *(step for number in absent.values() for step in return_if_number(number, fail(errno.ENOSYS))),
        *(step for number in _DONE_X86_64.values() for step in return_if_number(number, fail(0))),
        *_refuse_clone_of_namespaces(),
        *_refuse_socket_families(_SOCKET),
        *_refuse_socket_families(_SOCKETPAIR),
        *_refuse_terminal_injection(),
        *_refuse_mappings(growing=unbounded.memory),
        *(step for place, number, flag in _OF_HUGE_PAGES for step in _refuse_flag(number, place, flag)),
        *_refuse_socket_filters(),
        *_refuse_leases(waking=unbounded.waking),
        *_refuse_controls(waking=unbounded.waking),
        *_refuse_advice(),
        *(step for number in _OF_CALLER_ONLY.values() for step in _refuse_others(number)),
        *(step for number, user in _OF_CALLER_BY_KIND.values() for step in _refuse_others_by_kind(number, user)),
        *_refuse_limits_of_others(),
        *([] if forbid_affinity else _refuse_affinity_of_first_process()),
        *(step for number in sorted(refused.values()) for step in return_if_number(number, fail(errno.EPERM))),
        give(RETURN_ALLOW),
    ]


def _refuse_clone_of_namespaces() -> list[Instruction]:
    body = [
        load(OFFSET_ARGUMENT_0),
        Instruction(Opcode.JUMP_ANY_BIT, _CLONE_NAMESPACE_FLAGS, 0, 1),
        give(fail(errno.EPERM)),
        give(RETURN_ALLOW),
    ]
    return on_number(_CLONE, body)


def _refuse_socket_families(number: int) -> list[Instruction]:
    families = ALLOWED_SOCKET_FAMILIES
    tests = [Instruction(Opcode.JUMP_EQUAL, family, len(families) - index, 0) for index, family in enumerate(families)]
    return on_number(number, [load(OFFSET_ARGUMENT_0), *tests, give(fail(errno.EAFNOSUPPORT)), give(RETURN_ALLOW)])


def _refuse_terminal_injection() -> list[Instruction]:
    body = [
        load(OFFSET_ARGUMENT_1),
        Instruction(Opcode.JUMP_EQUAL, _TIOCSTI, 1, 0),
        Instruction(Opcode.JUMP_EQUAL, _TIOCLINUX, 0, 1),
        give(fail(errno.EPERM)),
        give(RETURN_ALLOW),
    ]
    return on_number(_IOCTL, body)


def _refuse_mappings(*, growing: bool) -> list[Instruction]:
    """Huge pages are the machine's, and no group of memory counts them; programs take ordinary ones.

    Memory that grows downwards counts as a stack, whose limit is asked for only when it grows.
    """
    body = [load(OFFSET_ARGUMENT_3), *_fail_if_any(_MAP_HUGETLB, errno.ENOMEM)]
    if growing:
        body += _fail_if_any(_MAP_GROWSDOWN, errno.EPERM)
    return on_number(_MMAP, [*body, give(RETURN_ALLOW)])


def _refuse_flag(number: int, place: int, flag: int) -> list[Instruction]:
    return on_number(number, [load(place), *_fail_if_any(flag, errno.ENOMEM), give(RETURN_ALLOW)])


def _fail_if_any(flags: int, number: int) -> list[Instruction]:
    return [Instruction(Opcode.JUMP_ANY_BIT, flags, 0, 1), give(fail(number))]


def _refuse_socket_filters() -> list[Instruction]:
    """They are compiled into memory that has one limit for the machine, and what starts a sandbox needs some of it."""
    body = [
        load(OFFSET_ARGUMENT_1),
        Instruction(Opcode.JUMP_EQUAL, _SOL_SOCKET, 1, 0),
        give(RETURN_ALLOW),
        load(OFFSET_ARGUMENT_2),
        *return_if_number(_SO_ATTACH_FILTER, fail(errno.EPERM)),
        *return_if_number(_SO_ATTACH_REUSEPORT_CBPF, fail(errno.EPERM)),
        give(RETURN_ALLOW),
    ]
    return on_number(_SETSOCKOPT, body)


def _refuse_leases(*, waking: bool) -> list[Instruction]:
    """Refuses leases: a stopped process with a lease on a file delays other openers for 45 s, and copies of the file.

    With `waking` also what would send SIGCONT for I/O while everything that could send it is stopped.
    """
    body = [load(OFFSET_ARGUMENT_1), Instruction(Opcode.JUMP_EQUAL, _F_SETLEASE, 0, 1), give(fail(errno.EPERM))]
    if waking:
        body += [
            Instruction(Opcode.JUMP_EQUAL, _F_SETSIG, 0, 3),
            load(OFFSET_ARGUMENT_2),
            Instruction(Opcode.JUMP_EQUAL, _SIGCONT, 0, 1),
            give(fail(errno.EPERM)),
        ]
    return on_number(_FCNTL, [*body, give(RETURN_ALLOW)])


def _refuse_controls(*, waking: bool) -> list[Instruction]:
    """A cookie of core scheduling keeps everybody else from the other half of a core.

    With `waking` also a child that would get SIGCONT at the end of its parent.
    """
    body = [load(OFFSET_ARGUMENT_0), *return_if_number(_PR_SCHED_CORE, fail(errno.EINVAL))]
    if waking:
        body += [
            Instruction(Opcode.JUMP_EQUAL, _PR_SET_PDEATHSIG, 0, 3),
            load(OFFSET_ARGUMENT_1),
            *return_if_number(_SIGCONT, fail(errno.EPERM)),
        ]
    return on_number(_PRCTL, [*body, give(RETURN_ALLOW)])


def _refuse_advice() -> list[Instruction]:
    """Advice about memory that sandboxes share.

    Pages of the system's files are everybody's, and stay in memory. Pages with the same content do not become one: that
    takes time of the kernel's own, and tells of others' memory.
    """
    pages = [load(OFFSET_ARGUMENT_3), *return_if_number(_POSIX_FADV_DONTNEED, fail(0)), give(RETURN_ALLOW)]
    same = [load(OFFSET_ARGUMENT_2), *return_if_number(_MADV_MERGEABLE, fail(errno.EINVAL)), give(RETURN_ALLOW)]
    return [*on_number(_FADVISE64, pages), *on_number(_MADVISE, same)]


def _refuse_others(number: int) -> list[Instruction]:
    body = [load(OFFSET_ARGUMENT_0), *_allow_if_equal(0), give(fail(errno.EPERM))]
    return on_number(number, body)


def _refuse_others_by_kind(number: int, user: int) -> list[Instruction]:
    body = [
        load(OFFSET_ARGUMENT_0),
        Instruction(Opcode.JUMP_EQUAL, user, 0, 1),
        give(fail(errno.EPERM)),
        load(OFFSET_ARGUMENT_1),
        *_allow_if_equal(0),
        give(fail(errno.EPERM)),
    ]
    return on_number(number, body)


def _refuse_limits_of_others() -> list[Instruction]:
    """Limits of others can be read: then there is no pointer to new ones."""
    body = [
        load(OFFSET_ARGUMENT_0),
        *_allow_if_equal(0),
        load(OFFSET_ARGUMENT_2),
        Instruction(Opcode.JUMP_EQUAL, 0, 1, 0),
        give(fail(errno.EPERM)),
        load(OFFSET_ARGUMENT_2 + HIGH_HALF),
        *_allow_if_equal(0),
        give(fail(errno.EPERM)),
    ]
    return on_number(_PRLIMIT64, body)


def _refuse_affinity_of_first_process() -> list[Instruction]:
    """Not of all others: a program that places its threads on cores names them by their numbers."""
    body = [
        load(OFFSET_ARGUMENT_0),
        Instruction(Opcode.JUMP_EQUAL, _FIRST_PROCESS, 0, 1),
        give(fail(errno.EPERM)),
        give(RETURN_ALLOW),
    ]
    return on_number(_SCHED_SETAFFINITY, body)


def _allow_if_equal(value: int) -> list[Instruction]:
    return [Instruction(Opcode.JUMP_EQUAL, value, 0, 1), give(RETURN_ALLOW)]
