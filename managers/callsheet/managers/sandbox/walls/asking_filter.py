"""The filter that has the kernel ask the agent about some system calls, see `agent/asking.py`."""

from __future__ import annotations

from callsheet.managers.sandbox.walls.bpf import (
    Instruction,
    Opcode,
    check_architecture,
    give,
    load,
    on_number,
    pack_program,
    return_if_number,
)
from callsheet.managers.sandbox.walls.seccomp import (
    OFFSET_ARGUMENT_0,
    OFFSET_ARGUMENT_1,
    OFFSET_ARGUMENT_3,
    RETURN_ALLOW,
    RETURN_USER_NOTIFY,
)

_SOCKET, _MMAP, _PRCTL, _SECCOMP = 41, 9, 157, 317
_AF_NETLINK = 16
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, _SECCOMP_SET_MODE_FILTER = 22, 2, 1
_MAP_SHARED, _MAP_ANONYMOUS = 0x01, 0x20


def build_asking_filter(*, memory: bool) -> bytes:
    """Returns the filter that asks about each netlink socket and each further filter, for x86_64.

    Args:
        memory: Ask about each anonymous shared mapping, too.
    """
    ask_memory = on_number(_MMAP, _ask_about_shared_mappings()) if memory else []
    ask_sockets = on_number(_SOCKET, _ask_if(_AF_NETLINK))
    ask_filters = [
        *on_number(_SECCOMP, _ask_if(_SECCOMP_SET_MODE_FILTER)),
        *on_number(
            _PRCTL,
            [
                load(OFFSET_ARGUMENT_0),
                Instruction(Opcode.JUMP_EQUAL, _PR_SET_SECCOMP, 1, 0),
                give(RETURN_ALLOW),
                load(OFFSET_ARGUMENT_1),
                *return_if_number(_SECCOMP_MODE_FILTER, RETURN_USER_NOTIFY),
                give(RETURN_ALLOW),
            ],
        ),
    ]
    return pack_program([*check_architecture(), *ask_memory, *ask_sockets, *ask_filters, give(RETURN_ALLOW)])


def _ask_if(first: int) -> list[Instruction]:
    return [load(OFFSET_ARGUMENT_0), *return_if_number(first, RETURN_USER_NOTIFY), give(RETURN_ALLOW)]


def _ask_about_shared_mappings() -> list[Instruction]:
    return [
        load(OFFSET_ARGUMENT_3),
        Instruction(Opcode.JUMP_ANY_BIT, _MAP_ANONYMOUS, 1, 0),
        give(RETURN_ALLOW),
        # Shared mappings are of type 1 or 3, private ones of type 2, others do not exist.
        Instruction(Opcode.JUMP_ANY_BIT, _MAP_SHARED, 1, 0),
        give(RETURN_ALLOW),
        give(RETURN_USER_NOTIFY),
    ]
