"""The pure parts of the SWE-ReX facade: what it runs, what it makes of results, and how errors travel."""

from __future__ import annotations

import io
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest
from callsheet.client import (
    Cancelled,
    Command,
    CommandResult,
    ConnectionLostError,
    Expired,
    Failed,
    FailureKind,
    InvalidArgumentError,
    NotFoundError,
    Reason,
    RefusalCode,
    SessionReport,
    TimeoutKind,
)
from callsheet.http_server.listening import split_address
from callsheet.integrations.sandboxes.settings import SandboxRequest
from callsheet.integrations.swerex import errors, programs, shell
from callsheet.integrations.swerex.app import tar_of_zip
from callsheet.integrations.swerex.errors import TransferredError
from callsheet.integrations.swerex.protocol import Execute, ReadFile
from callsheet.integrations.swerex.settings import FacadeSettings


def run(command: Command, directory: Path) -> CommandResult:
    """Runs a command here as a sandbox does."""
    done = subprocess.run(
        command.program, cwd=directory, input=command.stdin, capture_output=True, check=False, timeout=30
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def steps(directory: Path, *texts: str) -> CommandResult:
    """Runs the steps of one session here: each is sourced, as in a sandbox."""
    for number, text in enumerate(texts):
        (directory / f"step{number}").write_text(text)
    script = "".join(f". ./step{number}\n" for number in range(len(texts)))
    done = subprocess.run(["bash", "-s"], cwd=directory, input=script.encode(), capture_output=True, check=False)
    return CommandResult(done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize(
    "path", ["plain", "with space", "-", "--help", "quo'te\"s", "deep/er/file", "new\nline", "$HOME", "~"]
)
def test_a_file_of_any_name_is_written_and_read(tmp_path: Path, path: str) -> None:
    content = b"\x00\xff text\r\n"
    assert run(programs.write_command(path, content), tmp_path).exit_code == 0
    assert (tmp_path / path).read_bytes() == content
    assert run(programs.read_command(path), tmp_path).stdout == content


def test_files_that_cannot_be_written_or_read_are_told_as_python_does(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("")
    for path, class_path in (("directory", "builtins.IsADirectoryError"), ("none", "builtins.FileNotFoundError")):
        with pytest.raises(TransferredError) as caught:
            programs.read_response(ReadFile(path=path), run(programs.read_command(path), tmp_path))
        assert caught.value.class_path == class_path
    with pytest.raises(TransferredError, match="file/below") as below:
        programs.check_file("file/below", run(programs.write_command("file/below", b""), tmp_path))
    assert below.value.class_path == "builtins.OSError"
    with pytest.raises(TransferredError, match="signal 9"):
        programs.check_file("file", CommandResult(-9, signal=9))
    assert programs.execute_response(Execute(command=""), CommandResult(-9, signal=9), "marker")["exit_code"] == -9


def test_a_program_cannot_say_that_its_directory_is_missing(tmp_path: Path) -> None:
    there, away = (
        Execute(command=["sh", "-c", "cat /proc/$$/cmdline >&2; exit 126"], cwd="."),
        Execute(command="true", cwd="no"),
    )
    result = run(programs.execute_command(there, "marker"), tmp_path)
    assert b"marker" not in result.stderr
    assert programs.execute_response(there, result, "marker")["exit_code"] == 126
    with pytest.raises(TransferredError, match="No such file or directory: 'no'"):
        programs.execute_response(away, run(programs.execute_command(away, "marker"), tmp_path), "marker")


def test_everything_at_once_for_a_program(tmp_path: Path) -> None:
    request = Execute(
        command="echo $A $HOME; echo err >&2", shell=True, env={"A": "b c"}, cwd="/", merge_output_streams=True
    )
    result = run(programs.execute_command(request, "marker"), tmp_path)
    assert (result.stdout, result.stderr) == (b"b c\nerr\n", b"")
    with pytest.raises(TransferredError, match="must not have '='"):
        programs.execute_command(Execute(command=["a=b"], env={}), "marker")


def test_a_step_with_a_syntax_error_runs_nothing(tmp_path: Path) -> None:
    text = "touch ran\nif true; then"
    result = steps(tmp_path, shell.start_text("s1", []), shell.step_text("s1", text, "marker"))
    assert not (tmp_path / "ran").exists()
    with pytest.raises(TransferredError, match="unexpected end of file") as caught:
        shell.check_step("default", text, result, "marker")
    assert caught.value.class_path == "swerex.exceptions.BashIncorrectSyntaxError"
    assert "marker" not in caught.value.extra_info["bash_stderr"]


def test_a_step_in_another_shell_runs_nothing(tmp_path: Path) -> None:
    text = shell.step_text("s1", "touch ran", "marker")
    assert steps(tmp_path, text).exit_code == 97
    assert steps(tmp_path, shell.start_text("s2", []), text).exit_code == 97
    assert not (tmp_path / "ran").exists()
    with pytest.raises(TransferredError) as caught:
        shell.check_step("default", "", CommandResult(97, session=SessionReport(started=True, ended=True)), "marker")
    assert caught.value.class_path == "swerex.exceptions.SessionNotInitializedError"


@pytest.mark.parametrize("text", ["exit 2", "printf marke; (exit 2)", "echo 'unended heredoc' <<EOF"])
def test_a_step_that_runs_is_not_taken_for_a_wrong_one(tmp_path: Path, text: str) -> None:
    result = steps(tmp_path, shell.start_text("s1", []), shell.step_text("s1", text, "marker"))
    shell.check_step("default", text, result, "marker")


def test_outputs_are_one_and_without_control_sequences(tmp_path: Path) -> None:
    text = "echo a; echo b >&2; printf '\\033[1;31mred\\033[0m\\033M\\r\\n'"
    result = steps(tmp_path, shell.start_text("s1", []), shell.step_text("s1", text, "marker"))
    assert shell.text_of(result.stdout) == "a\nb\nred\n"
    assert shell.status_of(CommandResult(-9, signal=9)) == 137
    assert "7 bytes" in shell.truncation(CommandResult(0, stdout_dropped_bytes=7))


def zipped(**files: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def test_a_zip_becomes_a_tar_with_permissions() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        tool = zipfile.ZipInfo("bin/tool")
        tool.external_attr = 0o104755 << 16
        archive.writestr(tool, b"x" * 1000)
        archive.mkdir("empty")
    with tarfile.open(fileobj=io.BytesIO(tar_of_zip(packed.getvalue(), 1000))) as tar:
        found = {member.name: (member.mode, member.size, member.isdir()) for member in tar}
    # Without the set-user-id bit.
    assert found == {"bin/tool": (0o755, 1000, False), "empty": (0o755, 0, True)}


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        (b"no zip", "must be a zip archive"),
        (zipped(**{"../out": b""}), "must stay inside"),
        (zipped(**{"/etc/out": b""}), "must stay inside"),
        (zipped(a=b"x" * 600, b=b"x" * 600), "1200 bytes unpacked"),
        (zipped(a=b"x" * 500).replace(b"x" * 500, b"y" * 500), "must be a zip archive"),
    ],
    # Not by the archives, which have the time of their making in them: workers would disagree on the tests.
    ids=["no archive", "a relative path outside", "an absolute path", "too much", "a wrong checksum"],
)
def test_other_archives_are_refused(content: bytes, rule: str) -> None:
    with pytest.raises(TransferredError, match=rule):
        tar_of_zip(content, 1000)


def failed(kind: FailureKind, reason: str, message: str = "") -> Failed[CommandResult]:
    return Failed(kind=kind, reason=Reason(reason), message=message)


@pytest.mark.parametrize(
    ("error", "class_path", "ends"),
    [
        (
            errors.outcome_error(failed(FailureKind.TIMEOUT, "start_to_close")),
            "swerex.exceptions.CommandTimeoutError",
            False,
        ),
        (errors.outcome_error(failed(FailureKind.INFRA, "state_lost")), "swerex.exceptions.SwerexException", True),
        (errors.outcome_error(failed(FailureKind.INFRA, "manager_lost")), "swerex.exceptions.SwerexException", False),
        (errors.outcome_error(failed(FailureKind.RESOURCE_LIMIT, "pids")), "swerex.exceptions.SwerexException", False),
        (
            errors.outcome_error(failed(FailureKind.ENV, "cannot_execute", "'x': Permission denied")),
            "builtins.PermissionError",
            False,
        ),
        (errors.outcome_error(failed(FailureKind.POLICY, "bad_command")), "builtins.ValueError", False),
        (errors.outcome_error(Cancelled(reason="idle")), "swerex.exceptions.SwerexException", True),
        (
            errors.outcome_error(Expired(timeout=TimeoutKind.SCHEDULE_TO_START)),
            "swerex.exceptions.SwerexException",
            False,
        ),
        (errors.refusal_error(ConnectionLostError("away")), "swerex.exceptions.SwerexException", False),
        (errors.refusal_error(InvalidArgumentError(RefusalCode.INVALID_ARGUMENT)), "builtins.ValueError", False),
        (
            errors.refusal_error(NotFoundError(RefusalCode.NOT_FOUND, field="trajectory_id")),
            "swerex.exceptions.SwerexException",
            True,
        ),
    ],
)
def test_what_is_no_result_is_an_error_of_its_class(error: TransferredError, class_path: str, ends: bool) -> None:
    assert (error.class_path, error.ends_sandbox) == (class_path, ends)
    assert error.timed_out == class_path.endswith("CommandTimeoutError")
    assert error.transfer()["swerexception"]["class_path"] == class_path


@pytest.mark.parametrize(("address", "parts"), [("127.0.0.1:80", ("127.0.0.1", 80)), ("[::1]:0", ("::1", 0))])
def test_addresses(address: str, parts: tuple[str, int]) -> None:
    assert split_address(address) == parts


@pytest.mark.parametrize("address", ["", "host", "host:port", "host:70000"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        FacadeSettings("scheduler:1", address, None, "job")


def test_settings_name_what_is_wrong() -> None:
    with pytest.raises(ValueError, match="auth_token: empty"):
        FacadeSettings("scheduler:1", "127.0.0.1:1", "", "job")
    with pytest.raises(ValueError, match="max_sandboxes: 0"):
        FacadeSettings("scheduler:1", "127.0.0.1:1", None, "job", max_sandboxes=0)
    with pytest.raises(ValueError, match="memory_mib: 0"):
        SandboxRequest(memory_mib=0)
    assert "secret" not in repr(FacadeSettings("scheduler:1", "127.0.0.1:1", "secret", "job"))
