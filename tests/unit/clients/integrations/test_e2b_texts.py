"""The shell texts of the E2B facade, run by this machine's own sh: processes, their output and input, and files."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from callsheet.client import Command, CommandResult
from callsheet.integrations.e2b import file_texts
from callsheet.integrations.e2b import process_texts as texts
from callsheet.integrations.e2b.errors import ConnectCode, E2bError
from callsheet.integrations.e2b.messages import Body

FILES = texts.ProcessFiles("p1", "a-marker")
LONG_S = 30.0
Run = Callable[[Command], CommandResult]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command as a sandbox would."""
    (tmp_path / "tmp").mkdir()
    work = tmp_path / "work"
    work.mkdir()

    def run_command(command: Command) -> CommandResult:
        environment = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "HOME": str(work)}
        done = subprocess.run(
            list(command.program),
            cwd=work,
            env=environment,
            input=command.stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        ended = -done.returncode if done.returncode < 0 else None
        return CommandResult(max(done.returncode, 0), done.stdout, done.stderr, ended)

    return run_command


def begin(text: str, *, slice_s: float = LONG_S, cwd: str = "", stdin: bool = False, **envs: str) -> Command:
    return texts.begin_command(FILES, ["/bin/bash", "-c", text], envs, cwd=cwd, stdin=stdin, slice_s=slice_s)


def follow(stdout_bytes: int, stderr_bytes: int = 0, slice_s: float = LONG_S) -> Command:
    return texts.follow_command(FILES, slice_s=slice_s, stdout_bytes=stdout_bytes, stderr_bytes=stderr_bytes)


def test_a_process_that_ends_in_its_first_slice(run: Run, tmp_path: Path) -> None:
    result = run(begin("echo $$ $A; echo err >&2; exit 3", A="it's"))
    pid, _, output = result.stdout.partition(b"\n")
    assert output == pid + b" it's\n"
    assert (result.stderr, texts.exit_code_of(FILES, result)) == (b"err\n", 3)
    assert list((tmp_path / "tmp/.callsheet-e2b").iterdir()) == []


def test_a_process_goes_on_between_slices(run: Run) -> None:
    first = run(begin("echo one; read -r line < /dev/stdin; echo $line; echo e >&2", slice_s=0.0, stdin=True))
    assert (first.signal, texts.exit_code_of(FILES, first)) == (signal.SIGUSR2, None)
    pid, _, output = first.stdout.partition(b"\n")
    run(texts.write_input_command(FILES, b"two\n"))
    second = run(follow(len(output)))
    assert (pid.isdigit(), output + second.stdout) == (True, b"one\ntwo\n")
    assert (second.stderr, texts.exit_code_of(FILES, second)) == (b"e\n", 0)


def test_input_ends_when_it_is_closed(run: Run) -> None:
    assert texts.exit_code_of(FILES, run(begin("cat", slice_s=0.0, stdin=True))) is None
    run(texts.write_input_command(FILES, b"all"))
    texts.check_input(7, run(texts.close_input_command(FILES)))
    assert run(follow(0)).stdout == b"all"
    for command in (texts.write_input_command(FILES, b"more"), texts.close_input_command(FILES)):
        with pytest.raises(E2bError, match="process 7 was not found"):
            texts.check_input(7, run(command))
    with pytest.raises(E2bError, match="not all of its input"):
        texts.check_input(7, CommandResult(124))


def test_a_follower_that_is_killed_is_told_as_e2b_does() -> None:
    assert texts.exit_code_of(FILES, CommandResult(-9, signal=9)) == -1


def test_what_is_given_up_leaves_nothing(run: Run, tmp_path: Path) -> None:
    first = run(begin("sleep 1000", slice_s=0.0, stdin=True))
    run(texts.give_up_command(FILES, int(first.stdout.split()[0])))
    assert list((tmp_path / "tmp/.callsheet-e2b").iterdir()) == []
    with pytest.raises(E2bError, match="gone"):
        texts.exit_code_of(FILES, run(follow(0)))


def test_more_than_a_slice_takes_comes_in_several(run: Run) -> None:
    size = texts.MOST_OUTPUT_BYTES + 1000
    result = run(begin(f"head -c {size} /dev/zero; echo end"))
    output = result.stdout.partition(b"\n")[2]
    for _ in range(100):
        if texts.exit_code_of(FILES, result) is not None:
            break
        result = run(follow(len(output)))
        assert len(result.stdout) <= texts.MOST_OUTPUT_BYTES * 2
        output += result.stdout
    assert output == bytes(size) + b"end\n"


def test_what_cannot_begin_says_why(run: Run) -> None:
    with pytest.raises(E2bError, match="cwd: '/no such place': must be a directory"):
        texts.exit_code_of(FILES, run(begin("true", cwd="/no such place")))
    for field, arguments, envs in (("envs", ["true"], {"A-B": "c"}), ("process", ["tr\0ue"], {})):
        with pytest.raises(E2bError, match=field):
            texts.begin_command(FILES, arguments, envs, cwd="", stdin=False, slice_s=1.0)
    missing = texts.begin_command(FILES, ["no-such-program"], {}, cwd="~", stdin=False, slice_s=LONG_S)
    result = run(missing)
    assert (texts.exit_code_of(FILES, result), b"no-such-program" in result.stderr) == (127, True)


@pytest.mark.parametrize(
    ("begins", "others", "left_s", "slice_s"),
    [
        (True, False, None, 0.5),
        (False, False, None, 1.0),
        (False, True, None, 0.2),
        (False, False, 0.1, 0.1),
        (False, False, -1.0, 0.0),
    ],
)
def test_slices_are_short_where_others_wait_and_end_at_the_deadline(
    begins: bool, others: bool, left_s: float | None, slice_s: float
) -> None:
    assert texts.slice_of(begins=begins, others=others, left_s=left_s) == slice_s


def entries(run: Run, command: Command, marker: str = "m1") -> list[Body]:
    result = run(command)
    file_texts.check("path", result)
    return file_texts.entries_of(result.stdout, marker)


def test_files_are_written_and_read(run: Run, tmp_path: Path) -> None:
    result = run(file_texts.write_command("a b/c", b"\0x"))
    assert file_texts.written(result.stdout.decode()) == {
        "name": "c",
        "path": str(tmp_path / "work/a b/c"),
        "type": "file",
    }
    assert run(file_texts.read_command("~/a b/c", 1)).stdout == b"x"
    found = entries(run, file_texts.stat_command("a b/c", "m1"))
    assert [(each["name"], each["size"], each["type"]) for each in found] == [("c", "2", "FILE_TYPE_FILE")]


def test_directories_are_listed_with_any_name_and_with_links(run: Run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    (work / "d/e").mkdir(parents=True)
    for name in ("x\ny", "-rf", "d/deep", "d/e/deeper", "m1 e"):
        (work / name).write_text("1")
    (work / "to").symlink_to("d")
    (work / "nowhere").symlink_to("no such")
    found = {
        each["path"].removeprefix(f"{work}/"): each
        for each in entries(run, file_texts.list_command(".", 2, "m0"), "m0")
    }
    assert list(found) == sorted(["-rf", "d", "d/deep", "d/e", "m1 e", "nowhere", "to", "x\ny"])
    link = [found["to"][name] for name in ("type", "isSymlink", "symlinkTarget")]
    assert link == ["FILE_TYPE_DIRECTORY", True, str(work / "d")]
    assert found["nowhere"]["type"] == "FILE_TYPE_UNSPECIFIED"
    assert found["d"]["permissions"].startswith("drwx")
    assert entries(run, file_texts.list_command("d/e", 1, "m1"))[0]["name"] == "deeper"


def test_things_are_made_moved_and_removed(run: Run, tmp_path: Path) -> None:
    work = tmp_path / "work"
    assert entries(run, file_texts.make_command("a/b", "m1"))[0]["path"] == str(work / "a/b")
    (work / "f").write_text("1")
    assert entries(run, file_texts.move_command("f", "n/g", "m1"))[0]["name"] == "g"
    assert (work / "n/g").read_text() == "1"
    assert entries(run, file_texts.move_command("n", "a/b", "m1"))[0]["path"] == str(work / "a/b")
    assert (work / "a/b/g").exists()
    for _ in range(2):
        assert run(file_texts.remove_command("a")).exit_code == 0
    assert not (work / "a").exists()


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (file_texts.read_command("no", 0), ConnectCode.NOT_FOUND),
        (file_texts.read_command("d", 0), ConnectCode.INVALID_ARGUMENT),
        (file_texts.read_command("p", 0), ConnectCode.INVALID_ARGUMENT),
        (file_texts.write_command("p", b""), ConnectCode.INVALID_ARGUMENT),
        (file_texts.write_command("d", b""), ConnectCode.INVALID_ARGUMENT),
        (file_texts.write_command("f/g", b""), ConnectCode.INVALID_ARGUMENT),
        (file_texts.stat_command("no", "m"), ConnectCode.NOT_FOUND),
        (file_texts.list_command("no", 1, "m"), ConnectCode.NOT_FOUND),
        (file_texts.list_command("f", 1, "m"), ConnectCode.INVALID_ARGUMENT),
        (file_texts.make_command("d", "m"), ConnectCode.ALREADY_EXISTS),
        (file_texts.make_command("f", "m"), ConnectCode.INVALID_ARGUMENT),
        (file_texts.move_command("no", "x", "m"), ConnectCode.NOT_FOUND),
        (file_texts.move_command("f", "d", "m"), ConnectCode.INVALID_ARGUMENT),
    ],
)
def test_what_cannot_be_done_with_a_path_says_why(
    run: Run, tmp_path: Path, command: Command, code: ConnectCode
) -> None:
    (tmp_path / "work/d").mkdir()
    (tmp_path / "work/f").write_text("")
    os.mkfifo(tmp_path / "work/p")
    with pytest.raises(E2bError) as caught:
        file_texts.check("p", run(command))
    assert caught.value.code is code


def test_a_full_disk_has_a_status_of_its_own() -> None:
    with pytest.raises(E2bError) as caught:
        file_texts.check("p", CommandResult(1, b"", b"cat: write error: No space left on device"))
    assert caught.value.status == 507


@pytest.mark.parametrize(
    "make",
    [
        lambda: file_texts.read_command("", 0),
        lambda: file_texts.stat_command("a\0b", "m"),
        lambda: file_texts.list_command(".", -1, "m"),
        lambda: file_texts.move_command("a", "", "m"),
    ],
)
def test_bad_arguments_are_refused(make: Callable[[], Command]) -> None:
    with pytest.raises(E2bError, match="must be"):
        make()
