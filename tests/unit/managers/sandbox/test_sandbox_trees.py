"""Trees that are copied and removed without recursion and without paths."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from callsheet.managers.sandbox.agent.trees import open_above, remove_tree
from callsheet.managers.sandbox.files.changes import ChangedFiles, ChangesTooLargeError
from callsheet.managers.sandbox.files.directories import remove_directory

_DEPTH = 3000
_NAME = "name" * 10


def dig(place: Path, depth: int = _DEPTH) -> None:
    """Makes a deep tree with a file at its end."""
    directory = os.open(place, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(_NAME, dir_fd=directory)
        below = os.open(_NAME, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory = below
    os.close(os.open("end", os.O_CREAT | os.O_WRONLY, dir_fd=directory))
    os.close(directory)


def depth_of(place: Path) -> int:
    """Returns how deep it is."""
    directory, depth = os.open(place, os.O_RDONLY), 0
    while _NAME in os.listdir(directory):
        below = os.open(_NAME, os.O_RDONLY, dir_fd=directory)
        os.close(directory)
        directory, depth = below, depth + 1
    assert os.listdir(directory) == ["end"]
    os.close(directory)
    return depth


def save(base: Path, target: Path, limit: int = 1 << 30) -> int:
    """Saves the one overlay of a base, as a launcher shows it."""
    own, other = socket.socketpair()
    with own, other:
        directory = os.open(base, os.O_RDONLY)
        socket.send_fds(other, [b"mounted"], [directory])
        os.close(directory)
        return ChangedFiles(own, ["work"]).save(target, limit)


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    """Where an overlay keeps its changes."""
    upper = tmp_path / "base" / "work" / "upper"
    upper.mkdir(parents=True)
    (tmp_path / "target").mkdir()
    return upper


def test_a_deep_tree_is_copied_and_removed(upper: Path, tmp_path: Path) -> None:
    dig(upper)
    (upper / "beside").mkdir()
    save(tmp_path / "base", tmp_path / "target")
    assert [path.name for path in (tmp_path / "target").iterdir()] == ["work"]
    (tmp_path / "target" / "work" / "beside").rmdir()
    assert depth_of(tmp_path / "target" / "work") == _DEPTH
    remove_directory(tmp_path / "target")
    remove_directory(tmp_path / "base")
    assert not list(tmp_path.iterdir())


def test_a_copy_is_what_it_was_copied_from(upper: Path, tmp_path: Path) -> None:
    for name in ("a", "a/inner", "b"):
        (upper / name).mkdir()
    (upper / "a" / "file").write_bytes(b"content")
    (upper / "a" / "file").chmod(0o4750)
    os.link(upper / "a" / "file", upper / "b" / "second")
    os.link(upper / "a" / "file", upper / "third")
    (upper / "link").symlink_to("/etc/passwd")
    os.mkfifo(upper / "pipe")
    with (upper / "sparse").open("wb") as sparse:
        sparse.seek(1 << 30)
        sparse.write(b"end")
    (upper / "a" / "inner").chmod(0o1500)
    os.utime(upper / "a" / "inner", ns=(1, 2_000_000_001))
    os.utime(upper / "a", ns=(1, 3_000_000_001))
    assert save(tmp_path / "base", tmp_path / "target") < 1 << 20
    copy = tmp_path / "target" / "work"
    assert {path.name for path in copy.iterdir()} == {"a", "b", "third", "link", "sparse"}
    file, inner = (copy / "a" / "file").stat(), (copy / "a" / "inner").stat()
    assert stat.S_IMODE(file.st_mode) == 0o750
    assert (file.st_nlink, file.st_ino) == (3, (copy / "b" / "second").stat().st_ino)
    assert (copy / "third").read_bytes() == b"content"
    assert (stat.S_IMODE(inner.st_mode), inner.st_mtime_ns) == (0o1500, 2_000_000_001)
    assert (copy / "a").stat().st_mtime_ns == 3_000_000_001
    assert (copy / "link").readlink() == Path("/etc/passwd")
    assert ((copy / "sparse").stat().st_size, (copy / "sparse").stat().st_blocks < 100) == ((1 << 30) + 3, True)


def test_too_much_is_refused(upper: Path, tmp_path: Path) -> None:
    dig(upper, 20)
    with pytest.raises(ChangesTooLargeError):
        save(tmp_path / "base", tmp_path / "target", 20 * 512)


def test_what_links_lead_to_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree" / "closed").mkdir(parents=True)
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "tree" / "closed" / "link").symlink_to("../..")
    (tmp_path / "tree" / "closed").chmod(0)
    (tmp_path / "other").symlink_to("kept")
    parent = os.open(tmp_path, os.O_RDONLY)
    try:
        remove_tree(parent, "tree")
        with pytest.raises(NotADirectoryError):
            remove_tree(parent, "other")
    finally:
        os.close(parent)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "other"]
    assert (tmp_path / "kept" / "file").exists()


def test_a_directory_that_was_moved_meanwhile_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a" / "inner").mkdir(parents=True)
    above = os.stat(tmp_path / "a")
    inner = os.open(tmp_path / "a" / "inner", os.O_RDONLY)
    try:
        os.close(open_above(inner, (above.st_dev, above.st_ino)))
        (tmp_path / "a" / "inner").rename(tmp_path / "inner")
        with pytest.raises(OSError, match="moved away"):
            open_above(inner, (above.st_dev, above.st_ino))
    finally:
        os.close(inner)
