"""Stacks of unpacked layers show what a model of the OCI's rules says: a dictionary that layers are applied to."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from callsheet.managers.sandbox.files.images import layer_child
from callsheet.managers.sandbox.files.images.lower_layers import is_deleted, is_opaque
from callsheet.managers.sandbox.files.images.unpacking import hide_what_is_below
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.oci_images import Entry, archive_of, compressed, file

# Few names, so that layers meet; those of directories and of files overlap.
NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
KINDS = st.sampled_from(["file", "directory", "delete", "hide"])
LAYERS = st.lists(st.lists(st.tuples(KINDS, PATHS, st.booleans()), max_size=6), min_size=1, max_size=4)

# A file's content; None is a directory.
Tree = dict[str, bytes | None]


def remove(tree: Tree, path: str) -> None:
    for each in [each for each in tree if each == path or each.startswith(f"{path}/")]:
        del tree[each]


def put(tree: Tree, path: str, content: bytes | None) -> None:
    """Puts an entry and the directories above it; what it replaces, and what is no directory above, gives way."""
    parts = path.split("/")
    for depth in range(1, len(parts)):
        above = "/".join(parts[:depth])
        if tree.get(above) is not None:
            remove(tree, above)
        tree.setdefault(above, None)
    if content is not None or tree.get(path) is not None:
        remove(tree, path)
    tree[path] = content


def applied(layers: list[list[tuple[str, str, bool]]]) -> Tree:
    """The model: marks take effect on what lies below first, then the layer's own entries come on top."""
    tree: Tree = {}
    for number, layer in enumerate(layers):
        for kind, path, _ in layer:
            if kind == "delete":
                remove(tree, path)
            elif kind == "hide":
                for each in [each for each in tree if each.startswith(f"{path}/")]:
                    del tree[each]
        for kind, path, _ in layer:
            if kind == "delete":
                # The directory that the mark lies in is an entry as well.
                parent, _, _ = path.rpartition("/")
                if parent:
                    put(tree, parent, None)
            else:
                put(tree, path, str(number).encode() if kind == "file" else None)
    return tree


def members(layer: list[tuple[str, str, bool]], number: int) -> Iterator[Entry]:
    for kind, path, dotted in layer:
        shown = f"./{path}" if dotted else path
        parent, _, name = path.rpartition("/")
        if kind == "file":
            yield file(shown, str(number).encode())
        elif kind == "directory":
            yield Entry(shown)
        elif kind == "hide":
            yield file(f"{shown}/.wh..wh..opq")
        else:
            yield file(f"{parent}/.wh.{name}" if parent else f".wh.{name}")


def merged(layers: list[Path]) -> Tree:
    """What an overlay of these directories shows."""
    tree: Tree = {}
    for layer in layers:
        for place, directories, files in os.walk(layer):
            inside = os.path.relpath(place, layer)
            if inside != "." and is_opaque(place):
                for each in [each for each in tree if each.startswith(f"{inside}/")]:
                    del tree[each]
            for name in (*directories, *files):
                path = os.path.normpath(os.path.join(inside, name))
                status = os.lstat(os.path.join(place, name))
                if is_deleted(status):
                    remove(tree, path)
                else:
                    put(tree, path, Path(place, name).read_bytes() if name in files else None)
    return tree


@contextmanager
def directory() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="callsheet-layers-"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


@settings(max_examples=60, deadline=None)
@given(LAYERS, st.sampled_from(["", "gzip", "zstd"]))
def test_layers_show_what_the_model_says(layers: list[list[tuple[str, str, bool]]], compression: str) -> None:
    # Marks come first in their layer, as the format recommends: what they hide is not looked at for what follows.
    ordered = [sorted(layer, key=lambda entry: entry[0] not in ("delete", "hide")) for layer in layers]
    with directory() as place:
        lower: list[Path] = []
        for number, layer in enumerate(ordered):
            archive, target = place / f"{number}.tar", place / str(number)
            archive.write_bytes(compressed(archive_of(list(members(layer, number))), compression))
            target.mkdir()
            request: dict[str, object] = {
                "archive": str(archive),
                "target": str(target),
                "lower": [str(path) for path in lower],
                "limit": 1 << 20,
                "digest": "",
                "size": -1,
                "diff_id": "",
            }
            _, opaque = layer_child.unpack(request)
            hide_what_is_below(target, opaque)
            lower.append(target)
        assert merged(lower) == applied(ordered)
