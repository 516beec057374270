"""Paths that clients name."""

from __future__ import annotations

import pytest
from callsheet.managers.sandbox.paths import PathRefusedError, split_relative


@pytest.mark.parametrize(
    ("path", "components"),
    [("file", ("file",)), ("a/b", ("a", "b")), ("./a//b/", ("a", "b")), ("ü/…", ("ü", "…")), ("..a", ("..a",))],
)
def test_relative_paths_are_split(path: str, components: tuple[str, ...]) -> None:
    assert split_relative(path) == components


@pytest.mark.parametrize(
    "path", ["", ".", "/", "/etc/passwd", "..", "a/..", "a/../../b", "a\0b", "x" * 256, "a/" * 3000]
)
def test_paths_that_leave_or_name_nothing_are_refused(path: str) -> None:
    with pytest.raises(PathRefusedError, match="path"):
        split_relative(path)


def test_the_working_directory_itself_is_allowed_where_asked_for() -> None:
    assert split_relative("", allow_empty=True) == ()
    assert split_relative("./", allow_empty=True) == ()
