"""`callsheet logs` over the files of a stack."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from callsheet.cli.app import app
from callsheet.cli.log_command import matches, new_lines, readable
from typer.testing import CliRunner, Result


def event(at: int, name: str, **fields: object) -> str:
    stamp = f"2026-01-01T00:00:{at:02}Z"
    return json.dumps({"event": name, **fields, "role": "x", "level": "info", "timestamp": stamp})


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    logs = tmp_path / "logs"
    logs.mkdir()
    scheduler = [event(1, "scheduler_started", epoch=1), event(4, "lost", key="job-1/a-1"), "Traceback (most recent)"]
    sandbox = [event(2, "registered"), event(3, "attempt_failed", job="job-1", action="a-1", trajectory="t-1")]
    (logs / "scheduler.log").write_text("".join(f"{line}\n" for line in scheduler))
    (logs / "sandbox.log").write_text("".join(f"{line}\n" for line in sandbox) + '{"event": "half a li')
    return tmp_path


def shown(data_dir: Path, *arguments: str) -> list[str]:
    result = CliRunner().invoke(app, ["logs", "--data-dir", str(data_dir), *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_all_roles_are_shown_by_time(data_dir: Path) -> None:
    lines = shown(data_dir)
    assert [line.split()[1] for line in lines[:4]] == ["scheduler", "sandbox", "sandbox", "scheduler"]
    assert lines[0] == "2026-01-01T00:00:01Z scheduler info scheduler_started epoch=1"
    assert lines[4] == "scheduler Traceback (most recent)"


def test_one_role_and_the_last_lines(data_dir: Path) -> None:
    assert len(shown(data_dir, "sandbox")) == 2
    assert "attempt_failed" in shown(data_dir, "sandbox", "--lines", "1")[0]
    assert len(shown(data_dir, "--lines", "3")) == 3
    assert shown(data_dir, "--lines", "0") == []


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (("--action", "a-1"), 2),
        (("--job", "job-1"), 2),
        (("--trajectory", "t-1"), 1),
        (("--job", "job-1", "--trajectory", "t-1", "--action", "a-1"), 1),
        (("--action", "a"), 0),
    ],
)
def test_lines_are_found_by_the_ids_they_name(data_dir: Path, arguments: tuple[str, ...], count: int) -> None:
    assert len(shown(data_dir, *arguments)) == count


def test_json_is_what_was_logged(data_dir: Path) -> None:
    assert json.loads(shown(data_dir, "sandbox", "--json")[1])["trajectory"] == "t-1"


def test_a_directory_without_logs_is_named(tmp_path: Path) -> None:
    result: Result = CliRunner().invoke(app, ["logs", "reward", "--data-dir", str(tmp_path)])
    assert result.exit_code == 1
    assert "has no reward.log" in result.stderr


def test_following_goes_on_after_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    places = {path: 0}
    path.write_text("one\ntw")
    assert list(new_lines(path, places)) == ["one"]
    with path.open("a") as log:
        log.write("o\nthree\n")
    assert list(new_lines(path, places)) == ["two", "three"]
    path.write_text("anew\n")
    assert list(new_lines(path, places)) == ["anew"]
    path.unlink()
    assert list(new_lines(path, places)) == []


def test_lines_of_any_form_are_read() -> None:
    assert readable("[1, 2]", "sandbox") == "sandbox [1, 2]"
    assert matches("no json", [])
    assert not matches("no json", ["a-1"])
