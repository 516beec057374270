"""Classic BPF as seccomp takes it: instructions, and the patterns that filters are made of, for x86_64.

Offsets are those of the kernel's `struct seccomp_data` (little endian). A filter begins with `check_architecture`,
which leaves the system call's number in the accumulator.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

RETURN_KILL_PROCESS: Final = 0x80000000

_RETURN_ERRNO: Final = 0x00050000

_OFFSET_NUMBER: Final = 0

_OFFSET_ARCHITECTURE: Final = 4

_AUDIT_ARCH_X86_64: Final = 0xC000003E

_X32_SYSCALL_BIT: Final = 0x40000000


class Opcode(IntEnum):
    """Operations of an instruction."""

    LOAD_WORD = 0x20
    JUMP_EQUAL = 0x15
    JUMP_GREATER_OR_EQUAL = 0x35
    JUMP_ANY_BIT = 0x45
    RETURN = 0x06


@dataclass(frozen=True, slots=True)
class Instruction:
    """One classic BPF instruction; jumps count the instructions to skip."""

    opcode: int
    operand: int
    if_true: int = 0
    if_false: int = 0

    def pack(self) -> bytes:
        """Returns it as the kernel's `struct sock_filter`."""
        return struct.pack("<HBBI", self.opcode, self.if_true, self.if_false, self.operand)


def pack_program(program: Sequence[Instruction]) -> bytes:
    """Returns a program as the kernel takes it."""
    return b"".join(instruction.pack() for instruction in program)


def load(offset: int) -> Instruction:
    """Takes a word of the call into the accumulator."""
    return Instruction(Opcode.LOAD_WORD, offset)


def give(verdict: int) -> Instruction:
    """Ends with a verdict."""
    return Instruction(Opcode.RETURN, verdict)


def fail(number: int) -> int:
    """The verdict by which a call fails with an errno."""
    return _RETURN_ERRNO | number


def return_if_number(number: int, verdict: int) -> list[Instruction]:
    """The accumulator holds the system call's number here and afterwards."""
    return [Instruction(Opcode.JUMP_EQUAL, number, 0, 1), give(verdict)]


def on_number(number: int, body: Sequence[Instruction]) -> list[Instruction]:
    """Runs `body`, which must end in returns on every way, for one system call only."""
    return [Instruction(Opcode.JUMP_EQUAL, number, 0, len(body)), *body]


def check_architecture() -> list[Instruction]:
    """Ends a process that calls by another ABI (i386, x32): its numbers would mean other system calls."""
    return [
        load(_OFFSET_ARCHITECTURE),
        Instruction(Opcode.JUMP_EQUAL, _AUDIT_ARCH_X86_64, 1, 0),
        give(RETURN_KILL_PROCESS),
        load(_OFFSET_NUMBER),
        Instruction(Opcode.JUMP_GREATER_OR_EQUAL, _X32_SYSCALL_BIT, 0, 1),
        give(RETURN_KILL_PROCESS),
    ]
