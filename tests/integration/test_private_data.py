"""What a stack keeps is for its owner alone, whatever mask the shell has; and a token of it that was damaged."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from callsheet.deploy.tokens import TokenFileError, issue, issue_for_stack, listed, token_path

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
