"""What a stack keeps is for its owner alone, whatever mask the shell has; and a token of it that was damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from callsheet.deploy.tokens import TokenFileError, issue, issue_for_stack, listed, token_path
from callsheet.options.private_files import write_private_file

_UP = (sys.executable, "-m", "callsheet.cli.main", "up", "--json", "--managers", "sandbox", "--isolation", "none")


def open_to_others(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in (root, *root.rglob("*")) if path.lstat().st_mode & 0o077]


def test_nothing_that_a_stack_makes_is_open_to_others(tmp_path: Path) -> None:
    data_dir = tmp_path / "not" / "there" / "yet"
    options = ["--listen", "127.0.0.1:0", "--data-dir", str(data_dir), "--tokens", str(data_dir / "tokens.json")]
    process = subprocess.Popen(
        [*_UP, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, umask=0, process_group=0
    )
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline(), process.stderr.read()
        # Until the managers have registered.
        assert any("sandbox" in line and "ready" in line for line in process.stderr)
        found = open_to_others(tmp_path / "not")
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert found == []
    assert process.returncode == 0


def test_a_token_goes_into_a_private_file_that_holds_nothing_else(tmp_path: Path) -> None:
    tokens, out = tmp_path / "tokens.json", tmp_path / "job.token"
    (tmp_path / "job.token.new").touch(0o600)
    command = [sys.executable, "-m", "callsheet.cli.main", "token", "issue", "job", "j", "--tokens", str(tokens)]
    made = subprocess.run(
        [*command, "--out", str(out)], check=False, capture_output=True, text=True, umask=0, timeout=60
    )
    assert (made.returncode, made.stdout, made.stderr) == (0, "", "")
    assert [out.read_text().split("_")[1]] == [each.token_id for each in listed(tokens)]
    assert open_to_others(tmp_path) == []
    assert issue(tokens, "job", "j", out=out) == out.read_text().strip(), "a token of before is replaced"
    with pytest.raises(IsADirectoryError):
        write_private_file(tmp_path, "a token")
    assert sorted(tmp_path.parent.glob(f"*{tmp_path.name}*")) == [tmp_path], "what failed leaves nothing"
    assert sorted(tmp_path.glob("*job.token*")) == [out, tmp_path / "job.token.new"]


@pytest.mark.parametrize(
    ("plant", "rule"),
    [
        (lambda out, other: out.symlink_to(other), "must be a new file"),
        (lambda out, other: out.symlink_to(other / "gone"), "must be a new file"),
        (lambda out, _: os.mkfifo(out), "must be a new file"),
        (lambda out, _: out.write_text("my notes"), "holds no token"),
        (lambda out, _: out.parent.rmdir(), "cannot be written"),
    ],
)
def test_a_token_overwrites_nothing_and_none_is_left_valid(
    tmp_path: Path, plant: Callable[[Path, Path], object], rule: str
) -> None:
    tokens, out, other = tmp_path / "tokens.json", tmp_path / "out" / "job.token", tmp_path / "other"
    out.parent.mkdir()
    admin = issue(tokens, "admin", "", out=other)
    plant(out, other)
    with pytest.raises(TokenFileError, match=rule):
        issue(tokens, "job", "j", out=out)
    assert other.read_text() == f"{admin}\n"
    assert [each.scope.value for each in listed(tokens) if each.revoked_at is None] == ["admin"]


@pytest.mark.parametrize(
    "damage", ["", "callsheet", "callsheet_", "callsheet_0a1b2c_", "\x00\x01", "callsheet_zz_00\n"]
)
def test_a_damaged_token_is_named_with_what_to_do(tmp_path: Path, damage: str) -> None:
    tokens = tmp_path / "tokens.json"
    issue_for_stack(tokens, tmp_path, {"noop": "node-noop"})
    kept = token_path(tmp_path, "noop")
    kept.write_text(damage)
    with pytest.raises(TokenFileError, match=r"noop\.token: holds no token\. Remove it"):
        issue_for_stack(tokens, tmp_path, {"noop": "node-noop"})
    kept.unlink()
    issue_for_stack(tokens, tmp_path, {"noop": "node-noop"})
    assert kept.read_text().startswith("callsheet_")


def test_a_token_that_is_no_text_is_damaged_too(tmp_path: Path) -> None:
    token_path(tmp_path, "").parent.mkdir()
    token_path(tmp_path, "admin").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TokenFileError, match=r"admin\.token"):
        issue_for_stack(tmp_path / "tokens.json", tmp_path, {})


def test_a_new_start_ends_the_tokens_of_the_last_one_and_no_others(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.json"
    issue(tokens, "job", "kept")
    issue_for_stack(tokens, tmp_path, {"noop": "node-noop"})
    first = {each.token_id for each in listed(tokens)}
    issue_for_stack(tokens, tmp_path, {"noop": "node-noop"})
    second = listed(tokens)
    assert sorted(each.subject for each in second) == ["", "kept", "node-noop"]
    assert len({each.token_id for each in second} & first) == 1
    assert os.stat(token_path(tmp_path, "noop")).st_mode & 0o777 == 0o600
