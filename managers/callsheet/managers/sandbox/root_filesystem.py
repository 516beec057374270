"""The files that a sandbox begins with, and as which overlays bubblewrap shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

WORK = "/work"
TEMPORARY = "/tmp"
# What the agent runs from. It is a mount of its own, so that nobody can move it away, and nobody can write there.
OWN_PLACE = "/run/callsheet"
SYSTEM_SHOWN = f"{OWN_PLACE}/usr"
COMMAND_PATH = "/usr/local/bin:/usr/bin:/bin"
IMAGE_COMMAND_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

RUN_MIB = 16
_OWN_PLACE_MIB = 4
SHARED_MEMORY_MIB = 64
# Of a file system in memory. A file may be empty and still takes memory: one for each page of the size.
FILES_PER_MIB = 256
_BYTES_AN_INODE = 4096
_FEWEST_INODES = 1024
# What must be directories in an image, with their modes.
_DIRECTORIES = {"dev": 0o755, "proc": 0o755, "run": 0o755, "tmp": 0o1777, "work": 0o755, "root": 0o700}


@dataclass(frozen=True, slots=True)
class RootFilesystem:
    """The files that a sandbox begins with.

    Attributes:
        image: Name of the image; empty for the machine's own system, read-only.
        layers: Prepared directories that make up the image, the lowest first.
        snapshot: A directory that `Sandbox.save_changes` made of a sandbox of the same image, to begin with its files.
        keeps_changes: Whether `Sandbox.save_changes` is to work.
    """

    image: str = ""
    layers: tuple[Path, ...] = ()
    snapshot: Path | None = None
    keeps_changes: bool = False


@dataclass(frozen=True, slots=True)
class Overlay:
    """One overlay.

    Attributes:
        name: Also of the directory in a snapshot that holds what was changed in it.
        inside: Where the sandbox sees it.
        mode: Of its root.
        layers: Prepared directories, the lowest first.
        directories: Made in it if they are not there, with their modes.
    """

    name: str
    inside: str
    mode: int
    layers: tuple[str, ...]
    directories: Mapping[str, int]


def overlays_of(root: RootFilesystem) -> list[Overlay]:
    """Returns the overlays of a sandbox; none where it is made of nothing but the machine's system and empty memory."""
    snapshot = root.snapshot
    if root.image:
        layers = [*map(str, root.layers), *([str(snapshot / "system")] if snapshot is not None else [])]
        return [Overlay("system", "/", 0o755, tuple(layers), _DIRECTORIES)]
    if not root.keeps_changes:
        return []
    places = (("work", WORK, 0o755), ("temporary", TEMPORARY, 0o1777))
    return [
        Overlay(name, inside, mode, (str(snapshot / name),) if snapshot is not None else (), {})
        for name, inside, mode in places
    ]


def overlay_request(base: str, overlays: Sequence[Overlay], disk_mib: int) -> dict[str, object] | None:
    """Returns what the launcher is to mount, in the words of `launcher/overlays.py`; None for nothing."""
    if not overlays:
        return None
    size = (disk_mib << 20) * len(overlays)
    return {
        "base": base,
        "size": size,
        "inodes": max(_FEWEST_INODES, size // _BYTES_AN_INODE),
        "overlays": [
            {
                "name": overlay.name,
                "layers": list(overlay.layers),
                "mode": overlay.mode,
                "directories": dict(overlay.directories),
            }
            for overlay in overlays
        ],
    }


def bind_options(base: str, overlays: Sequence[Overlay]) -> Iterator[str]:
    """Options of bwrap that show the overlays."""
    for overlay in overlays:
        yield from ("--bind", f"{base}/{overlay.name}/merged", overlay.inside)


def image_options() -> Iterator[str]:
    """Options of bwrap beside an image: what the agent runs with, out of the way of what is in the image."""
    yield from ("--perms", "0755", "--size", str(RUN_MIB << 20), "--tmpfs", "/run")
    yield from ("--perms", "0755", "--size", str(_OWN_PLACE_MIB << 20), "--tmpfs", OWN_PLACE)
    yield from ("--ro-bind", "/usr", SYSTEM_SHOWN)
