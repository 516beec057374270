"""How archives become layers: each rule by one archive, unpacked as the child process does it."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import stat
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from callsheet.managers.sandbox.files.images import layer_child, layer_tree
from callsheet.managers.sandbox.files.images.errors import ImageError
from callsheet.managers.sandbox.files.images.layer_tree import LayerRefusedError
from callsheet.managers.sandbox.files.images.lower_layers import LowerLayers, is_deleted, is_opaque
from callsheet.managers.sandbox.files.images.oci import digest_of
from callsheet.managers.sandbox.files.images.unpacking import hide_what_is_below, read_archived, unpack_layer
from callsheet.managers.sandbox.isolation.bubblewrap import find_bwrap

from tests.support.oci_images import Entry, archive_of, compressed, file, hard_link, symlink
from tests.support.sandboxes import require_bubblewrap

MIB = 1 << 20
pytestmark = pytest.mark.anyio


def request(archive: Path, target: Path, lower: list[Path] | None = None) -> dict[str, object]:
    return {
        "archive": str(archive),
        "target": str(target),
        "lower": [str(path) for path in lower or []],
        "limit": 16 * MIB,
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
    _, opaque = layer_child.unpack(request(archive, target, lower) | (changes or {}))
    hide_what_is_below(target, opaque)
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
    assert (mode(layer / "bin" / "su"), mode(layer / "shared")) == (0o755, 0o1777)
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
    assert is_deleted((layer / "gone" / "file").lstat())
    assert (is_opaque(str(layer / "tree")), is_opaque(str(layer / "hidden"))) == (True, True)
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
    assert [(upper / name).exists() for name in ("lib", "usr/lib/new")] == [False, True]
    assert ((upper / "usr/name").read_bytes(), (upper / "usr/name").samefile(upper / "usr/original")) == (
        b"content",
        True,
    )
    assert (mode(upper / "root"), mode(upper / "usr/name")) == (0o700, 0o640)


def test_what_a_layer_has_deleted_gives_nothing(tmp_path: Path) -> None:
    lower = unpacked(tmp_path, symlink("lib", "usr/lib"), file("old/file"), file("other/file"))
    upper = unpacked(tmp_path, file(".wh.lib"), file("lib/new"), file("old/.wh..wh..opq"), lower=[lower])
    assert (upper / "lib" / "new").exists()
    seen = LowerLayers([str(lower), str(upper)])
    found = [seen.find(name) for name in ("old/file", "lib/new", "other/file")]
    assert found == [None, str(upper / "lib/new"), str(lower / "other/file")]
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
    wrong: list[tuple[bytes, dict[str, object], str]] = [
        (blob, {"digest": digest_of(b"")}, "wrong digest"),
        (blob, {"diff_id": digest_of(b"")}, "wrong digest"),
        (blob, {"size": len(blob) + 1}, "cut off"),
        *((blob[:cut], {}, "cut off") for cut in (len(blob) // 2, len(blob) - 1, 20, 0)),
    ]
    for content, changes, rule in wrong:
        with pytest.raises(LayerRefusedError, match=rule):
            unpacked_bytes(tmp_path, content, changes=right | changes)


@pytest.mark.parametrize("compression", ["", "gzip", "zstd"])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.6])
def test_half_an_archive_is_refused_without_a_digest_too(tmp_path: Path, compression: str, part: float) -> None:
    blob = compressed(archive_of([file("a", os.urandom(3000)), file("b", os.urandom(3000))]), compression)
    with pytest.raises(LayerRefusedError, match=r"cut off|cannot be unpacked"):
        unpacked_bytes(tmp_path, blob[: int(len(blob) * part)])


def test_what_unpacks_to_more_than_the_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LayerRefusedError, match="more than 16 MiB"):
        unpacked_bytes(tmp_path, gzip.compress(archive_of([file("bomb", bytes(32 * MIB))]), 1))


def answer_to(tmp_path: Path, content: bytes, *program: str, **changes: object) -> dict[str, Any]:
    """Returns the answer of the process, or of another program, to an archive."""
    archive, target = tmp_path / "layer.tar", tmp_path / "layer"
    archive.write_bytes(content)
    target.mkdir(exist_ok=True)
    asked = json.dumps(request(archive, target) | {"limit": 20 << 30} | changes).encode()
    command = [sys.executable, *(program or ("-m", layer_child.__name__))]
    answer: dict[str, Any] = json.loads(subprocess.run(command, input=asked, check=True, capture_output=True).stdout)
    return answer


def test_the_child_process_answers(tmp_path: Path) -> None:
    content = archive_of([file("a", b"1")])
    assert answer_to(tmp_path, content)["bytes"]
    assert "cut off" in answer_to(tmp_path, content, digest=digest_of(b""), size=1)["refused"]
    assert answer_to(tmp_path, content, archive=str(tmp_path / "missing"))["errno"] == 2


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    """Of a member that is said to have so many bytes."""
    member = tarfile.TarInfo(name)
    member.size, member.type = size, kind
    return member.tobuf(tarfile.GNU_FORMAT)


def zeros(start: bytes, mib: int) -> bytes:
    """Returns a small archive that begins with this, and goes on with zeros."""
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=1) as file:
        file.write(start)
        for _ in range(mib):
            file.write(bytes(MIB))
    return out.getvalue()


@pytest.mark.parametrize(
    "start", [header("bomb", 1100 * MIB), header("dev/bomb", 1100 * MIB), bytes(1024), header("a", 0)]
)
def test_what_is_small_does_not_become_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes) -> None:
    """Also what is left out, and what follows the end, which is read for its digest."""
    monkeypatch.setattr(layer_child, "_FREE_BYTES", 4 * MIB)
    with pytest.raises(LayerRefusedError, match=r"more than \d+ MiB"):
        unpacked_bytes(tmp_path, zeros(start, 100), changes={"limit": 20 << 30})


def test_a_file_of_holes_is_as_large_as_it_says(tmp_path: Path) -> None:
    member = tarfile.TarInfo("holes")
    member.size, member.type = 512, tarfile.GNUTYPE_SPARSE
    block = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    block[386:398], block[398:410] = b"%011o\0" % 0, b"%011o\0" % 512
    block[483:495] = b"%011o\0" % (4 << 30)
    block[148:156] = b"%06o\0 " % (sum(block[:148]) + 8 * 32 + sum(block[156:]))
    refused = answer_to(tmp_path, bytes(block) + bytes(512) + bytes(1024))["refused"]
    assert "512 MiB and 200 times its archive" in refused


@pytest.mark.parametrize(
    ("entries", "rule"),
    [
        ([file("/".join("d" * 300) + "/f")], r"has 300 directories on the way: must have at most 256"),
        ([file("n" * 256)], r"has 256 bytes in its name: must have at most 255"),
        ([Entry("é" * 128)], r"has 256 bytes in its name"),
        ([file("/".join(["n" * 250] * 17))], r"has 4266 bytes in its path: must have at most 4095"),
        ([symlink("link", "t" * 4096)], r"link to a path of 4096 bytes: must have 1 to 4095"),
        ([file("dev/" + "n" * 256)], r"has 256 bytes in its name"),
    ],
)
def test_names_and_paths_are_bounded(tmp_path: Path, entries: list[Entry], rule: str) -> None:
    with pytest.raises(LayerRefusedError, match=rule):
        unpacked(tmp_path, *entries)


@pytest.mark.parametrize(
    "entries",
    [
        [file(f"f{number}") for number in range(101)],
        [file(f"{number}/a/b/c/d/e/f/g/h/i/j") for number in range(10)],
        [Entry("same")] * 101,
        [file(f"dev/{number}") for number in range(101)],
        [file(f".wh.{number}") for number in range(101)],
        [file("f"), *(hard_link(f"l{number}", "f") for number in range(100))],
    ],
)
def test_entries_are_bounded_however_they_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: list[Entry]
) -> None:
    monkeypatch.setattr(layer_tree, "MOST_ENTRIES", 100)
    with pytest.raises(LayerRefusedError, match="has 101 entries: must have at most 100"):
        unpacked(tmp_path, *entries)


def test_headers_of_headers_end(tmp_path: Path) -> None:
    one = header("x", 512, tarfile.XHDTYPE) + b"9 a=bcde\n".ljust(512, b"\0")
    assert "recursion" in answer_to(tmp_path, one * 3000)["refused"]


@pytest.mark.parametrize(
    ("name", "most", "rule"),
    [
        ("_MOST_MEMORY_MIB", 200, "takes more than 200 MiB of memory to unpack"),
        ("_MOST_CPU_S", 1, "takes more than 1 s of a core to unpack"),
    ],
)
def test_memory_and_time_of_the_process_are_bounded(tmp_path: Path, name: str, most: int, rule: str) -> None:
    # A name of 2 GiB, and a file that a directory replaces again and again.
    pairs = archive_of([file("e"), Entry("e")])[:1024] * 50_000
    content = zeros(header("long", 2 << 30, tarfile.GNUTYPE_LONGNAME), 300) if "MEMORY" in name else pairs
    script = f"import callsheet.managers.sandbox.files.images.layer_child as child; child.{name} = {most}; child.main()"
    assert answer_to(tmp_path, content, "-c", script) == {"refused": rule}


async def test_what_unpacks_has_one_directory_and_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs another program in the place of the one that unpacks."""
    require_bubblewrap()
    (tmp_path / "secret").write_text("of the manager")
    archive, target = tmp_path / "layer.tar", tmp_path / "layer"
    archive.write_bytes(b"archive")
    target.mkdir()
    program = tmp_path / "packages" / "hostile.py"
    program.parent.mkdir()
    program.write_text(
        "import json, os, socket, sys\n"
        "asked, done = json.load(sys.stdin), []\n"
        "def attempt(name, act):\n"
        "    try:\n"
        "        act(); done.append(name)\n"
        "    except OSError: pass\n"
        f"attempt('reads', lambda: open({str(tmp_path / 'secret')!r}))\n"
        "attempt('shadow', lambda: open('/etc/shadow'))\n"
        f"attempt('writes', lambda: open({str(tmp_path / 'new')!r}, 'w'))\n"
        "attempt('usr', lambda: open('/usr/new', 'w'))\n"
        f"attempt('kill', lambda: os.kill({os.getpid()}, 0))\n"
        "attempt('proc', lambda: os.listdir('/proc/1'))\n"
        "attempt('mount', lambda: os.mkdir('/other'))\n"
        "attempt('network', lambda: socket.create_connection(('127.0.0.1', asked['limit']), 1))\n"
        "os.mkdir(asked['target'] + '/hidden')\n"
        "open(asked['target'] + '/content', 'w').write(os.fdopen(asked['archive']).read())\n"
        "print(json.dumps({'bytes': 1, 'opaque': ['hidden'], 'done': done}))\n"
        "open(asked['target'] + '/done', 'w').write(' '.join(done))\n"
    )
    monkeypatch.syspath_prepend(str(program.parent))
    monkeypatch.setattr(layer_child, "__name__", "hostile")
    monkeypatch.setenv("PYTHONPATH", str(program.parent))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        await unpack_layer(archive, target, port, bwrap=find_bwrap())
    assert [(target / name).read_text() for name in ("done", "content")] == ["", "archive"]
    assert is_opaque(str(target / "hidden"))


@pytest.mark.parametrize("path", ["link", "link/inner", "../up", "a/../../up"])
def test_marks_stay_in_their_layer(tmp_path: Path, path: str) -> None:
    for name in ("up", "outside/inner", "layer/a"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "layer" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises((OSError, ImageError)):
        hide_what_is_below(tmp_path / "layer", [path])
    assert not [name for name in ("up", "outside", "outside/inner") if is_opaque(str(tmp_path / name))]


async def test_a_file_of_an_archive_is_read_within_bounds(tmp_path: Path) -> None:
    require_bubblewrap()

    async def read(path: str, content: bytes) -> str:
        place = Path(tempfile.mkdtemp(dir=tmp_path))
        return await read_archived(content, path, place, find_bwrap() or Path("/bwrap"))

    same = archive_of([file("./a/b", b"first"), file("c"), file("/a/../a/b", b"\xfflast"), file("dev/.wh.x", b"too")])
    assert await read("a/b", gzip.compress(same)) == "\udcfflast"
    assert await read("dev/.wh.x", same) == "too"
    for content, rule in (
        (archive_of([file("c")]), "has no file 'd'"),
        (archive_of([Entry("d")]), "has no file 'd'"),
        (archive_of([symlink("d", "/etc/shadow")]), "has no file 'd'"),
        (archive_of([file("d", bytes((1 << 20) + 1))]), "takes more than 1 MiB"),
        (b"none", "cannot be unpacked"),
        (compressed(header("x", 2 << 30) + bytes(560 * MIB), "zstd"), r"has more than \d+ MiB in its archive"),
    ):
        with pytest.raises(ImageError, match=rule):
            await read("d", content)
