"""The image store: names, and what they stand for."""

from __future__ import annotations

from pathlib import Path

import pytest
from callsheet.managers.sandbox.files.images.errors import ImageError
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


def test_what_lies_in_an_image_is_none_itself_wherever_its_links_lead(store: ImageStore, tmp_path: Path) -> None:
    (tmp_path / "tree/host").symlink_to("/")
    (tmp_path / "tree/usr/local/etc").mkdir(parents=True)
    for name in ("tree/host", "tree/usr/local", "tree/usr", "sets/inner/etc"):
        with pytest.raises(ImageError, match="is not in the image store"):
            store.find(name)
    (tmp_path / "elsewhere").symlink_to(tmp_path / "sets")  # The operator's own.
    assert store.find("elsewhere/inner").name == "elsewhere/inner"


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("", "has 0 layers"),
        ("../outside", "must not contain"),
        ("missing.tar", "must be a directory or an archive"),
        ("notes.txt", "must be a directory or an archive"),
        ("tree\n" * 101, "has 101 layers"),
    ],
)
def test_bad_lists_are_refused(store: ImageStore, tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "bad.layers").write_text(lines)
    with pytest.raises(ImageError, match=message):
        store.find("bad")
