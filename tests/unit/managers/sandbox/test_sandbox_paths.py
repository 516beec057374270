"""Paths that clients name."""

from __future__ import annotations

import pytest
from callsheet.managers.sandbox.errors import InputRefusedError
from callsheet.managers.sandbox.files.paths import checked_path, is_below


@pytest.mark.parametrize(
    ("path", "checked"),
    [
        ("file", "file"),
        ("./a//b/", "a/b"),
        ("ü/…", "ü/…"),
        ("..a", "..a"),
        ("/etc/passwd", "/etc/passwd"),
        ("//testbed/./x/", "/testbed/x"),
    ],
)
def test_paths_are_relative_or_absolute(path: str, checked: str) -> None:
    assert checked_path(path) == checked


@pytest.mark.parametrize(
    ("path", "below", "checked"),
    [("x", "/testbed", "/testbed/x"), ("x", "sub", "sub/x"), ("/x", "/testbed", "/x"), ("x", "/", "/x")],
)
def test_relative_paths_begin_from_a_directory(path: str, below: str, checked: str) -> None:
    assert checked_path(path, below=below) == checked
    assert checked_path("", below=below, allow_empty=True) == below


@pytest.mark.parametrize(
    "path", ["", ".", "/", "//.", "..", "a/..", "/..", "/a/../../b", "a\0b", "x" * 256, "/" + "x" * 256, "a/" * 3000]
)
def test_paths_that_climb_or_name_nothing_are_refused(path: str) -> None:
    with pytest.raises(InputRefusedError, match="path") as refused:
        checked_path(path)
    assert refused.value.reason == "bad_path"


def test_a_directory_itself_is_allowed_where_asked_for() -> None:
    assert [checked_path(path, allow_empty=True) for path in ("", "./", "/")] == ["", "", "/"]


def test_what_is_below_a_directory() -> None:
    assert is_below("/a/b", "/a")
    assert is_below("/a", "/a")
    assert is_below("/a", "/")
    assert not is_below("/ab", "/a")
