"""The seccomp filter, run by a small interpreter of classic BPF."""

from __future__ import annotations

import errno
import struct
from collections.abc import Sequence

import pytest
from callsheet.managers.sandbox.walls.asking_filter import build_asking_filter
from callsheet.managers.sandbox.walls.bpf import Instruction
from callsheet.managers.sandbox.walls.seccomp import (
    ALLOWED_SOCKET_FAMILIES,
    Unbounded,
    UnsupportedArchitectureError,
    build_filter,
    build_program,
)

X86_64 = 0xC000003E
I386 = 0x40000003
ALLOW = 0x7FFF0000
KILL = 0x80000000
ASK = 0x7FC00000


def failing(number: int) -> int:
    return 0x00050000 | number


def verdict(
    number: int,
    *arguments: int,
    architecture: int = X86_64,
    forbid_affinity: bool = False,
    unbounded: Unbounded = Unbounded(),  # noqa: B008 - frozen
) -> int:
    """Returns what the filter answers to a system call."""
    return answer_of(build_program(forbid_affinity, "x86_64", unbounded), number, *arguments, architecture=architecture)


def answer_of(program: Sequence[Instruction], number: int, *arguments: int, architecture: int = X86_64) -> int:
    """Runs a program."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *padded)
    accumulator, position = 0, 0
    while True:
        instruction = program[position]
        position += 1
        match instruction:
            case Instruction(opcode=0x20, operand=offset):
                (accumulator,) = struct.unpack_from("<I", data, offset)
            case Instruction(opcode=0x06, operand=answer):
                return answer
            case Instruction(opcode=opcode, operand=operand, if_true=if_true, if_false=if_false):
                holds = {
                    0x15: accumulator == operand,
                    0x35: accumulator >= operand,
                    0x45: bool(accumulator & operand),
                }[opcode]
                position += if_true if holds else if_false


EPERM, ENOSYS, EINVAL = (failing(number) for number in (errno.EPERM, errno.ENOSYS, errno.EINVAL))
POINTER = 0x7F00_0000_0000

# Laws of the filter with no option: system calls with their first arguments, and the answer to each of them.
LAWS: dict[str, list[tuple[int, list[tuple[int, ...]]]]] = {
    "ordinary calls are allowed": [(ALLOW, [(0,), (1,), (2,), (9,), (57,), (59,), (61,), (231,), (202,), (262,)])],
    "dangerous calls are refused": [
        (
            EPERM,
            [(101,), (155,), (165,), (166,), (169,), (175,), (246,), (250,), (272,), (298,), (304,), (308,), (310,)],
        ),
        (EPERM, [(321,), (323,), (428,), (435 + 3,), (442,)]),
    ],
    "calls with an older way do not exist": [
        (ENOSYS, [(206,), (240,), (425,), (426,), (427,), (435,), (447,), (467,), (468,), (600,)]),
    ],
    "clone makes no namespaces": [
        (EPERM, [(56, flag | 17) for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000)]),
        (EPERM, [(56, flag | 17) for flag in (0x10000000, 0x20000000, 0x40000000)]),
    ],
    "clone makes processes and threads": [(ALLOW, [(56, 17), (56, 0x3D0F00)])],
    "terminal injection is refused": [(EPERM, [(16, 0, 0x5412), (16, 0, 0x541C)]), (ALLOW, [(16, 0, 0x5401)])],
    "filters of sockets are refused": [
        (EPERM, [(54, 3, 1, 26), (54, 3, 1, 51)]),
        (ALLOW, [(54, 3, 6, 26), (54, 3, 6, 51), (54, 3, 1, 2)]),
    ],
    "what would write out the machine's files is done at once": [
        (failing(0), [(162,), (306, 3)]),
        (ALLOW, [(74, 3), (75, 3), (277, 3)]),
    ],
    "advice about memory that all share has no effect": [
        (failing(0), [(221, 3, 0, 0, 4)]),
        (EINVAL, [(28, 0x1000, 4096, 12)]),
        (ALLOW, [(221, 3, 0, 0, advice) for advice in (0, 1, 2, 3, 5)]),
        (ALLOW, [(28, 0x1000, 4096, 4), (28, 0x1000, 4096, 14)]),
    ],
    "only the caller itself is scheduled otherwise": [
        (ALLOW, [(142, 0), (144, 0), (314, 0)]),
        (EPERM, [(number, process) for number in (142, 144, 314) for process in (1, 2, 77, 0xFFFFFFFF)]),
    ],
    "only the caller itself has another priority": [
        (ALLOW, [(141, 0, 0), (141, 1, 0), (251, 1, 0), (251, 2, 0)]),
        (EPERM, [(141, 0, 1), (141, 1, 1), (251, 1, 1), (251, 2, 1), (141, 2, 0), (251, 3, 0)]),
    ],
    # The kernel takes 32 bits of a process.
    "limits of others can be read and not set": [
        (ALLOW, [(302, 0, 7, POINTER, 0), (302, 1, 7, 0, POINTER), (302, 1 << 32, 7, 0x1000, 0)]),
        (EPERM, [(302, 1, 7, POINTER, 0), (302, 1, 7, 0x1000, 0)]),
    ],
    "the first process stays on its cores": [(EPERM, [(203, 1)]), (ALLOW, [(203, 0), (203, 5)])],
}


@pytest.mark.parametrize("law", LAWS)
def test_a_law_of_the_filter_holds(law: str) -> None:
    expected = {call: answer for answer, calls in LAWS[law] for call in calls}
    assert {call: verdict(*call) for call in expected} == expected


@pytest.mark.parametrize("number", [41, 53])
def test_only_known_socket_families_exist(number: int) -> None:
    allowed = [family for family in range(64) if verdict(number, family) == ALLOW]
    assert allowed == sorted(ALLOWED_SOCKET_FAMILIES)
    assert verdict(number, 40) == failing(errno.EAFNOSUPPORT)


def test_affinity_is_refused_only_where_asked_for() -> None:
    answers = [verdict(203, 0), verdict(203, forbid_affinity=True), verdict(204, forbid_affinity=True)]
    assert answers == [ALLOW, EPERM, ALLOW]


@pytest.mark.parametrize(
    ("unbounded", "call", "error"),
    [
        (Unbounded(memory=True), (319, 0, 0), errno.ENOSYS),
        (Unbounded(memory=True), (9, 0, 4096, 3, 0x122), errno.EPERM),
        (Unbounded(waking=True), (222, 0, 0), errno.ENOSYS),
        (Unbounded(waking=True), (72, 1, 10, 18), errno.EPERM),
        (Unbounded(waking=True), (157, 1, 18), errno.EPERM),
        (Unbounded(system_v=True), (29, 0, 4096, 0o1600), errno.ENOSYS),
        (Unbounded(system_v=True), (64, 0, 1, 0o1600), errno.ENOSYS),
        (Unbounded(system_v=True), (68, 0, 0o1600), errno.ENOSYS),
    ],
)
def test_what_nothing_else_bounds_is_refused(unbounded: Unbounded, call: tuple[int, ...], error: int) -> None:
    assert verdict(*call) == ALLOW
    assert verdict(*call, unbounded=unbounded) == failing(error)


@pytest.mark.parametrize("waking", [False, True])
def test_leases_are_refused(*, waking: bool) -> None:
    assert verdict(72, 1, 1024, 1, unbounded=Unbounded(waking=waking)) == failing(errno.EPERM)
    assert verdict(72, 1, 1025, 1, unbounded=Unbounded(waking=waking)) == ALLOW


@pytest.mark.parametrize("call", [(72, 1, 10, 17), (72, 1, 2, 18), (157, 1, 9), (157, 4, 18), (9, 0, 4096, 3, 0x22)])
def test_what_is_like_it_is_allowed(call: tuple[int, ...]) -> None:
    assert verdict(*call, unbounded=Unbounded(memory=True, waking=True, system_v=True)) == ALLOW


@pytest.mark.parametrize(
    ("flags", "asked"), [(0x21, True), (0x23, True), (0x8021, True), (0x22, False), (0x01, False), (0x02, False)]
)
def test_anonymous_shared_mappings_are_asked_about(flags: int, asked: bool) -> None:
    program = asking_program(memory=True)
    assert answer_of(program, 9, 0, 4096, 3, flags) == (ASK if asked else ALLOW)
    assert answer_of(program, 10, 0, 4096, 3, flags) == ALLOW
    assert answer_of(asking_program(memory=False), 9, 0, 4096, 3, flags) == ALLOW


@pytest.mark.parametrize("memory", [True, False])
def test_netlink_sockets_are_asked_about(memory: bool) -> None:
    program = asking_program(memory=memory)
    answers = {family: answer_of(program, 41, family, 3, 0) for family in ALLOWED_SOCKET_FAMILIES}
    assert answers == {1: ALLOW, 2: ALLOW, 10: ALLOW, 16: ASK}
    # The kernel takes the lower half of a word for the family.
    assert answer_of(program, 41, 1 << 32 | 16, 3, 0) == ASK


@pytest.mark.parametrize("memory", [True, False])
def test_filters_of_system_calls_are_asked_about(memory: bool) -> None:
    program = asking_program(memory=memory)
    assert answer_of(program, 317, 1, 0) == answer_of(program, 317, 1, 8) == ASK
    assert answer_of(program, 157, 22, 2) == ASK
    # Strict mode, questions, and other controls of a process.
    for call in ((317, 0, 0), (317, 2, 0), (157, 22, 1), (157, 38, 1), (157, 2, 22), (157, 15, 2)):
        assert answer_of(program, *call) == ALLOW


def asking_program(*, memory: bool) -> list[Instruction]:
    words = struct.iter_unpack("<HBBI", build_asking_filter(memory=memory))
    return [Instruction(opcode, operand, true, false) for opcode, true, false, operand in words]


@pytest.mark.parametrize("flags", [0x40021, 0x40022, 0x40001, 0x15 << 26 | 0x40022])
def test_huge_pages_are_refused(flags: int) -> None:
    for unbounded in (Unbounded(), Unbounded(memory=True)):
        assert verdict(9, 0, 2 << 20, 3, flags, unbounded=unbounded) == failing(errno.ENOMEM)
    assert verdict(319, 0, 4) == verdict(29, 0, 2 << 20, 0o5600) == failing(errno.ENOMEM)
    assert verdict(319, 0, 3) == verdict(29, 0, 2 << 20, 0o1600) == verdict(9, 0, 4096, 3, 0x22) == ALLOW


@pytest.mark.parametrize("waking", [False, True])
def test_cores_are_not_kept_from_others(*, waking: bool) -> None:
    unbounded = Unbounded(waking=waking)
    assert {verdict(157, 62, what, unbounded=unbounded) for what in range(4)} == {failing(errno.EINVAL)}
    assert verdict(157, 61, 1, unbounded=unbounded) == verdict(157, 1, 62, unbounded=unbounded) == ALLOW


def test_other_abis_end_the_process() -> None:
    assert verdict(1, architecture=I386) == KILL
    assert verdict(0x40000000 | 1) == KILL


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(UnsupportedArchitectureError, match="aarch64"):
        build_filter(forbid_affinity=False, machine="aarch64")


def test_the_filter_is_whole_instructions_within_the_kernels_limit() -> None:
    content = build_filter(forbid_affinity=True, machine="x86_64")
    assert len(content) % 8 == 0
    assert 0 < len(content) // 8 <= 4096
