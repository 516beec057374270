"""The image store: names, and what they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.managers.sandbox.files.images.oci import ImageError
from callsheet.managers.sandbox.files.images.store import Image, ImageStore


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    for directory in ("tree/usr", "sets/inner/etc", "layers/base/bin", "empty"):
        (tmp_path / directory).mkdir(parents=True)
    for file in ("packed.tar.zst", "sets/plain.tar", "layers/top.tgz", "notes.txt", ".hidden.tar"):
        (tmp_path / file).write_bytes(b"")
    (tmp_path / "stack.layers").write_text("# the lowest first\nlayers/base\n\nlayers/top.tgz  # on it\n")
    return ImageStore(tmp_path)


def test_directories_archives_and_lists_are_images(store: ImageStore, tmp_path: Path) -> None:
    assert store.names() == ["layers/base", "layers/top", "packed", "sets/inner", "sets/plain", "stack", "tree"]
    assert store.find("tree") == Image("tree", (tmp_path / "tree",))
    assert store.find("sets/plain") == Image("sets/plain", (tmp_path / "sets/plain.tar",))
    assert store.find("stack").layers == (tmp_path / "layers/base", tmp_path / "layers/top.tgz")
    for name in store.names():
        assert store.find(name).name == name


@pytest.mark.parametrize("name", ["missing", "empty", "notes.txt", "../tree", "/tree", "tree/usr/../..", ""])
def test_what_is_no_image_is_refused(store: ImageStore, name: str) -> None:
    with pytest.raises(ImageError, match="image "):
        store.find(name)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "has 0 layers"),
        ("../outside", "must not hold"),
        ("missing.tar", "must be a directory or an archive"),
        ("notes.txt", "must be a directory or an archive"),
        ("tree\n" * 101, "has 101 layers"),
    ],
)
def test_bad_lists_are_refused(store: ImageStore, tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "bad.layers").write_text(lines)
    with pytest.raises(ImageError, match=message):
        store.find("bad")
