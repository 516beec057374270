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
# apt-get downloads by a user of its own unless this says otherwise, and a sandbox has no other one.
APT_CONFIG = f"{OWN_PLACE}/apt.conf"
APT_CONF = b'APT::Sandbox::User "root";\n'
COMMAND_PATH = "/usr/local/bin:/usr/bin:/bin"
HOST_NAME = "sandbox"
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
class ImageUser:
    """The one user that a sandbox with an image has. All files in it belong to that user.

    Attributes:
        uid: Its number.
        gid: That of its group.
        name: Its name.
        home: Its home directory.
    """

    uid: int = 0
    gid: int = 0
    name: str = "root"
    home: str = "/root"


ROOT = ImageUser()


@dataclass(frozen=True, slots=True)
class RootFilesystem:
    """The files that a sandbox begins with.

    Attributes:
        image: Name of the image; empty for the machine's own system, read-only.
        layers: Prepared directories that make up the image, the lowest first.
        user: Whom its commands run as, with an image.
        snapshot: A directory that `Sandbox.save_changes` made of a sandbox of the same image, to begin with its files.
        keeps_changes: Whether `Sandbox.save_changes` is to work.
        copy: A directory that `Sandbox.copy_files` made of a sandbox with the same image and snapshot, to begin with
            its files. It belongs to this one alone.
        temporary: The snapshot that the temporary directory is taken from, where the other files are in the copy.
    """

    image: str = ""
    layers: tuple[Path, ...] = ()
    user: ImageUser = ROOT
    snapshot: Path | None = None
    keeps_changes: bool = False
    copy: Path | None = None
    temporary: Path | None = None


@dataclass(frozen=True, slots=True)
class Overlay:
    """One overlay.

    Attributes:
        name: Also of the directory in a snapshot that holds what was changed in it.
        inside: Where the sandbox sees it.
        mode: Of its root.
        layers: Prepared directories, the lowest first.
        directories: Made in it if they are not there, with their modes.
        host_name: Laid into it, with localhost; empty where commands have other files for that.
    """

    name: str
    inside: str
    mode: int
    layers: tuple[str, ...]
    directories: Mapping[str, int]
    host_name: str = ""


def overlays_of(root: RootFilesystem) -> list[Overlay]:
    """Returns the overlays of a sandbox; none where it is made of nothing but the machine's system and empty memory."""
    kept = (root.snapshot, root.copy)
    if root.image:
        layers = (*map(str, root.layers), *_places("system", *kept))
        return [Overlay("system", "/", 0o755, layers, _DIRECTORIES, HOST_NAME)]
    if not root.keeps_changes and root.copy is None:
        return []
    return [
        Overlay("work", WORK, 0o755, _places("work", *kept), {}),
        Overlay("temporary", TEMPORARY, 0o1777, _places("temporary", root.temporary or root.snapshot), {}),
    ]


def _places(name: str, *above: Path | None) -> tuple[str, ...]:
    return tuple(str(path / name) for path in above if path is not None)


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
                "host_name": overlay.host_name,
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
