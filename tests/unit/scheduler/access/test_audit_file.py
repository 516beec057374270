"""The file of the audit: appended to, bounded, private, and whole lines after a write that was cut."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from callsheet.scheduler.access.audit import MAX_TEXT, append_lines, audit_line


def read(path: Path) -> list[object]:
    return [json.loads(line)["n"] for line in path.read_text().splitlines()]


def test_lines_are_appended_for_their_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "new" / "audit.jsonl"
    before = os.umask(0)
    try:
        append_lines(path, [{"n": 1}, {"n": 2}])
        append_lines(path, [{"n": 3}])
    finally:
        os.umask(before)
    assert read(path) == [1, 2, 3]
    assert all(each.stat().st_mode & 0o077 == 0 for each in (path.parent, *path.parent.iterdir()))


def test_two_files_bound_what_there_is_and_the_newest_lines_stay(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    for number in range(100):
        append_lines(path, [{"n": number}], max_bytes=200)
        assert sum(each.stat().st_size for each in tmp_path.glob("audit.jsonl*")) <= 400
    kept = read(tmp_path / "audit.jsonl.1") + read(path)
    assert kept == list(range(100 - len(kept), 100))
    assert len(kept) > 15


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    append_lines(path, [{"n": 1}])
    path.write_text(path.read_text() + '{"n": 2, "cu')
    append_lines(path, [{"n": 3}])
    first, cut, last = path.read_text().splitlines()
    assert (json.loads(first), cut, json.loads(last)) == ({"n": 1}, '{"n": 2, "cu', {"n": 3})


def test_several_write_at_once_and_no_line_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: append_lines(path, [{"n": number}], max_bytes=600), range(100)))
    assert sorted(read(tmp_path / "audit.jsonl.1") + read(path), key=str) == sorted(range(100), key=str)


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    with pytest.raises(OSError, match="directory"):
        append_lines(tmp_path / "audit.jsonl", [{"n": 1}])


@pytest.mark.parametrize("text", ["x" * 10_000_000, "\ud800" * 1000, "line\nline\x1b[2J" * 100])
def test_texts_of_others_are_bounded_and_stay_in_their_line(tmp_path: Path, text: str) -> None:
    path = tmp_path / "audit.jsonl"
    append_lines(path, [audit_line("close", 0.0, {"job_id": text, "version": 7})])
    (line,) = path.read_bytes().splitlines()
    assert len(line) < 8 * MAX_TEXT
    told = json.loads(line)
    assert (told["timestamp"], told["event"], told["act"], told["version"]) == (
        "1970-01-01T00:00:00+00:00",
        "audit",
        "close",
        7,
    )
    assert told["job_id"] == text[:MAX_TEXT]
