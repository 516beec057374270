"""How archives become layers: each rule by one archive, unpacked as the child process does it."""

from __future__ import annotations

import gzip
import io
import json
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from callsheet.managers.sandbox.files.images import layer_child
from callsheet.managers.sandbox.files.images.layer_tree import LayerRefusedError
from callsheet.managers.sandbox.files.images.lower_layers import LowerLayers, is_deleted, is_opaque
from callsheet.managers.sandbox.files.images.oci import digest_of

from tests.support.oci_images import Entry, archive_of, compressed, file, hard_link, symlink

MIB = 1 << 20


def request(archive: Path, target: Path, lower: list[Path] | None = None) -> dict[str, object]:
    return {
        "archive": str(archive),
        "target": str(target),
        "lower": [str(path) for path in lower or []],
        "limit": 16 * MIB,
        "as_root": os.geteuid() == 0,
        "digest": "",
        "size": -1,
        "diff_id": "",
    }


def unpacked(tmp_path: Path, *entries: Entry, lower: list[Path] | None = None) -> Path:
    """Unpacks an archive with these members on some layers; returns its directory."""
    return unpacked_bytes(tmp_path, archive_of(entries), lower)


def unpacked_bytes(
    tmp_path: Path, content: bytes, lower: list[Path] | None = None, changes: dict[str, object] | None = None
) -> Path:
    number = len(list(tmp_path.iterdir()))
    archive, target = tmp_path / f"{number}.tar", tmp_path / f"{number}"
    archive.write_bytes(content)
    target.mkdir()
    layer_child.unpack(request(archive, target, lower) | (changes or {}))
    return target


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_every_member_lands_inside(tmp_path: Path) -> None:
    layer = unpacked(
        tmp_path,
        file("/absolute", b"1"),
        file("../../up", b"2"),
        file("a/../b/./c", b"3"),
        symlink("out", "../../../etc"),
        symlink("rooted", "/etc"),
        file("out/by-dots", b"4"),
        file("rooted/by-root", b"5"),
        hard_link("also", "/../absolute"),
    )
    there = {str(path.relative_to(layer)): path.read_bytes() for path in layer.rglob("*") if path.is_file()}
    assert there == {"absolute": b"1", "up": b"2", "b/c": b"3", "etc/by-dots": b"4", "etc/by-root": b"5", "also": b"1"}
    assert (layer / "absolute").samefile(layer / "also")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "0.tar"]


def test_links_in_circles_end(tmp_path: Path) -> None:
    with pytest.raises(LayerRefusedError, match="behind more than 40 links"):
        unpacked(tmp_path, symlink("a", "b"), symlink("b", "a"), file("a/x"))


def test_what_must_not_be_there_is_left_out(tmp_path: Path) -> None:
    lower = unpacked(tmp_path, file("device", b"a file"), file("pipe", b"a file"))
    layer = unpacked(
        tmp_path,
        file("bin/su", b"", 0o6755),
        Entry("shared", mode=0o3777),
        Entry("device", kind=tarfile.CHRTYPE),
        Entry("new-pipe", kind=tarfile.FIFOTYPE),
        Entry("dev/sda", kind=tarfile.BLKTYPE),
        file("dev/file", b""),
        lower=[lower],
    )
    assert mode(layer / "bin" / "su") == 0o755
    assert mode(layer / "shared") == 0o1777
    assert sorted(path.name for path in layer.iterdir()) == ["bin", "device", "shared"]
    assert is_deleted((layer / "device").lstat()), "what a device took the place of is gone"


def test_marks_delete_what_is_below_and_nothing_of_their_own_layer(tmp_path: Path) -> None:
    layer = unpacked(
        tmp_path,
        file("kept", b"own"),
        file(".wh.kept"),
        file("tree/own", b""),
        file(".wh.tree"),
        file("gone/.wh.file"),
        file("hidden/.wh..wh..opq"),
        file(".wh..wh.plnk"),
    )
    assert (layer / "kept").read_bytes() == b"own"
    assert is_opaque(str(layer / "tree"))
    assert is_deleted((layer / "gone" / "file").lstat())
    assert is_opaque(str(layer / "hidden"))
    assert sorted(path.name for path in layer.iterdir()) == ["gone", "hidden", "kept", "tree"]


@pytest.mark.parametrize("name", [".wh.", ".wh...", ".wh.."])
def test_marks_of_nothing_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(LayerRefusedError, match="deletes no entry"):
        unpacked(tmp_path, file(f"a/{name}"))


def test_the_layers_below_give_directories_links_and_files(tmp_path: Path) -> None:
    lower = unpacked(
        tmp_path,
        Entry("root", mode=0o700),
        Entry("usr/lib"),
        symlink("lib", "usr/lib"),
        file("usr/original", b"content", 0o640),
    )
    upper = unpacked(
        tmp_path, file("root/.profile"), file("lib/new"), hard_link("usr/name", "usr/original"), lower=[lower]
    )
    assert mode(upper / "root") == 0o700
    assert not (upper / "lib").exists()
    assert (upper / "usr/lib/new").exists()
    assert (upper / "usr/name").read_bytes() == b"content"
    assert (upper / "usr/name").samefile(upper / "usr/original")
    assert mode(upper / "usr/name") == 0o640


def test_what_a_layer_has_deleted_gives_nothing(tmp_path: Path) -> None:
    lower = unpacked(tmp_path, symlink("lib", "usr/lib"), file("old/file"), file("other/file"))
    upper = unpacked(tmp_path, file(".wh.lib"), file("lib/new"), file("old/.wh..wh..opq"), lower=[lower])
    assert (upper / "lib" / "new").exists()
    seen = LowerLayers([str(lower), str(upper)])
    assert seen.find("old/file") is None
    assert seen.find("lib/new") == str(upper / "lib/new")
    assert seen.find("other/file") == str(lower / "other/file")
    with pytest.raises(LayerRefusedError, match="no file here"):
        unpacked(tmp_path, file(".wh.other"), hard_link("name", "other/file"), lower=[lower])


def test_the_last_of_two_members_of_one_name_counts(tmp_path: Path) -> None:
    lower = unpacked(tmp_path, file("tree/below"), file("file"))
    upper = unpacked(
        tmp_path,
        file("a", b"1"),
        file("a", b"22"),
        file("tree", b""),
        Entry("tree"),
        file("dir/inside", b""),
        file("dir", b"a file"),
        symlink("link", "nowhere"),
        hard_link("link", "a"),
        file("file/inside", b""),
        lower=[lower],
    )
    assert (upper / "a").read_bytes() == b"22"
    assert is_opaque(str(upper / "tree")), "it was a file in between, which ended the directory below"
    assert (upper / "dir").read_bytes() == b"a file"
    assert (upper / "link").samefile(upper / "a")
    assert (upper / "file" / "inside").exists()


@pytest.mark.parametrize(
    ("entries", "rule"),
    [
        ([hard_link("name", "missing")], "no file here"),
        ([Entry("tree"), hard_link("name", "tree")], "a directory"),
        ([file("tree/file"), hard_link("tree", "tree/file")], "inside it"),
        ([Entry("link", kind=tarfile.SYMTYPE)], "link to nothing"),
    ],
)
def test_names_of_nothing_are_refused(tmp_path: Path, entries: list[Entry], rule: str) -> None:
    with pytest.raises(LayerRefusedError, match=rule):
        unpacked(tmp_path, *entries)


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
def test_whatever_compresses_it_the_digests_are_checked(tmp_path: Path, compression: str) -> None:
    archive = archive_of([file("a", os.urandom(3000))])
    blob = compressed(archive, compression)
    right: dict[str, object] = {"digest": digest_of(blob), "size": len(blob), "diff_id": digest_of(archive)}
    assert (unpacked_bytes(tmp_path, blob, changes=right) / "a").stat().st_size == 3000
    wrong: list[tuple[dict[str, object], str]] = [
        ({"digest": digest_of(b"")}, "wrong digest"),
        ({"diff_id": digest_of(b"")}, "wrong digest"),
        ({"size": len(blob) + 1}, "cut off"),
    ]
    for changes, rule in wrong:
        with pytest.raises(LayerRefusedError, match=rule):
            unpacked_bytes(tmp_path, blob, changes=right | changes)
    for cut in (len(blob) // 2, len(blob) - 1, 20, 0):
        with pytest.raises(LayerRefusedError, match="cut off"):
            unpacked_bytes(tmp_path, blob[:cut], changes=right)


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.6])
def test_half_an_archive_is_refused_without_a_digest_too(tmp_path: Path, compression: str, part: float) -> None:
    blob = compressed(archive_of([file("a", os.urandom(3000)), file("b", os.urandom(3000))]), compression)
    with pytest.raises(LayerRefusedError, match=r"cut off|cannot be unpacked"):
        unpacked_bytes(tmp_path, blob[: int(len(blob) * part)])


def test_what_unpacks_to_more_than_the_cache_is_refused(tmp_path: Path) -> None:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        member = tarfile.TarInfo("bomb")
        member.size = 32 * MIB
        archive.addfile(member, io.BytesIO(bytes(32 * MIB)))
    with pytest.raises(LayerRefusedError, match="more than 16 MiB"):
        unpacked_bytes(tmp_path, gzip.compress(out.getvalue(), 1))


def test_the_child_process_answers(tmp_path: Path) -> None:
    archive, target = tmp_path / "layer.tar", tmp_path / "layer"
    archive.write_bytes(archive_of([file("a", b"1")]))
    target.mkdir()

    def ask(**changes: object) -> dict[str, object]:
        asked = json.dumps(request(archive, target) | changes).encode()
        done = subprocess.run(
            [sys.executable, "-m", layer_child.__name__], input=asked, check=True, capture_output=True
        )
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        return answer

    assert ask()["bytes"]
    assert "cut off" in str(ask(digest=digest_of(b""), size=1)["refused"])
    assert ask(archive=str(tmp_path / "missing"))["errno"] == 2
