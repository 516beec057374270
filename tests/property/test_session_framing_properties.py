"""The framing of sessions: nothing that is printed, or written where ends are told, forges the end of another step."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from itertools import pairwise

import pytest
from callsheet.managers.sandbox.agent_client.program import AGENT_DIRECTORY
from callsheet.managers.sandbox.agent_client.sessions import (
    SHELL_START,
    STATUS_DESCRIPTOR,
    StatusScanner,
    python_step,
    shell_step,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.samples import examples

MARKERS = st.text("0123456789abcdef", min_size=32, max_size=32)
OTHER = "f" * 32
needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is missing")
REAL_SHELL = settings(max_examples=examples(25))


def feed(scanner: StatusScanner, content: bytes, cuts: list[int]) -> list[int]:
    """Feeds bytes in pieces; returns the ends that were told."""
    edges = sorted({min(cut, len(content)) for cut in cuts} | {0, len(content)})
    told = []
    for begin, end in pairwise(edges):
        status = scanner.feed(content[begin:end])
        if status is not None:
            told.append(status)
    return told


@given(MARKERS, st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
@example(OTHER, b"0" * 32 + b" 0\n", [])
@example(OTHER, b"f" * 31 + b" 0\n", [])
def test_bytes_without_the_marker_tell_no_end(marker: str, noise: bytes, cuts: list[int]) -> None:
    assert marker.encode() in noise or feed(StatusScanner(marker), noise, cuts) == []


@given(MARKERS, MARKERS, st.integers(0, 255), st.lists(st.integers(0, 300), max_size=5))
def test_the_end_of_another_step_is_none_of_this_one(this: str, other: str, status: int, cuts: list[int]) -> None:
    told = feed(StatusScanner(this), f"{other} {status}\n".encode() * 3, cuts)
    assert told == [] or this == other


@given(MARKERS, st.binary(max_size=100), st.integers(0, 255), st.lists(st.integers(0, 300), max_size=8))
def test_the_end_is_found_behind_any_noise(marker: str, noise: bytes, status: int, cuts: list[int]) -> None:
    content = noise + f"{marker} {status}\n".encode()
    if marker.encode() not in noise:
        assert feed(StatusScanner(marker), content, cuts) == [status]


@given(MARKERS)
def test_what_is_no_status_tells_no_end(marker: str) -> None:
    for words in ("", "256", "-1", "1x", "0001", " 1"):
        assert StatusScanner(marker).feed(f"{marker} {words}\n".encode()) is None


def run_session(program: list[str], steps: bytes) -> tuple[bytes, bytes, int]:
    """Runs an interpreter on steps until its input ends, in a directory of its own: steps may make files.

    Returns:
        Its output, what it told of the steps' ends, and its exit code: below 0 where a signal ended it.
    """
    reader, writer = os.pipe()
    try:
        # bash gives the descriptor its number.
        command = ["bash", "-c", f'exec "$@" {STATUS_DESCRIPTOR}>&"$0"', str(writer), *program]
        with tempfile.TemporaryDirectory() as directory:
            done = subprocess.run(
                command,
                cwd=directory,
                input=steps,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                pass_fds=[writer],
                timeout=60,
                check=False,
            )
    finally:
        os.close(writer)
    with open(reader, "rb") as status:
        return done.stdout, status.read(), done.returncode


# What a here-document, a quote or a line could be broken by.
TEXTS = st.text(st.sampled_from("'\"\\\n$`<>&|;()#{}!~ \tendf0ü\r"), max_size=60)


@needs_bash
@pytest.mark.parametrize("shell", [["bash", "--noprofile", "--norc", "-s"], ["sh", "-s"]], ids=lambda words: words[0])
@given(text=TEXTS)
@example(text=f"end-{OTHER}")
@example(text="\\")
@REAL_SHELL
def test_a_shell_prints_any_text_and_its_next_step_is_its_own(shell: list[str], text: str) -> None:
    first, second = "a" * 32, "b" * 32
    quoted = text.replace("'", "'\\''")
    steps = shell_step(f"printf %s '{quoted}'; (exit 3)", first) + shell_step("echo; (exit 4)", second)
    output, told, _ = run_session(shell, SHELL_START + steps)
    assert output.decode() == f"{text}\n"
    assert told == f"{first} 3\n{second} 4\n".encode()


@needs_bash
@pytest.mark.parametrize("shell", [["bash", "--noprofile", "--norc", "-s"], ["sh", "-s"]], ids=lambda words: words[0])
@given(text=TEXTS)
@example(text="a <(b")
@REAL_SHELL
def test_any_text_of_a_shell_step_leaves_the_next_one_alone(shell: list[str], text: str) -> None:
    first, second = "a" * 32, "b" * 32
    # Whatever the text does, it cannot end the step before its own end, or keep the next one from its own.
    steps = shell_step(f"{text}\n:", first) + shell_step("(exit 4)", second)
    _, told, exit_code = run_session(shell, SHELL_START + steps)
    ends = [end.split() for end in told.decode().splitlines()]
    # bash 5.2 can corrupt its memory over a "<(" that nothing closes, and abort in this step or in the next one.
    crashed = exit_code in {-signal.SIGABRT, -signal.SIGSEGV}
    assert [marker for marker, _ in ends] == [first, second] or crashed
    assert [marker for marker, _ in ends] == [first, second][: len(ends)]
    assert len(ends) < 2 or ends[1] == [second, "4"]


@needs_bash
@given(text=TEXTS)
@REAL_SHELL
def test_a_python_session_prints_any_text_and_its_next_step_is_its_own(text: str) -> None:
    first, second = "a" * 32, "b" * 32
    program = ["python3", "-u", str(AGENT_DIRECTORY / "python_session.py")]
    printing = python_step(f"import sys\nw = sys.stdout.buffer.write({text.encode()!r})", first)
    output, told, _ = run_session(program, printing + python_step("print()\n1 / 0", second))
    assert output == text.encode() + b"\n"
    assert told == f"{first} 0\n{second} 1\n".encode()
