"""Parts of the machine's system that bwrap shows to sandboxes and to programs that read strangers' files. Read-only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

SYSTEM = "/usr"
# Directories of / that are links into /usr on merged systems and real directories on others.
_LINKS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_FILES = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime")


def system_options() -> Iterator[str]:
    """Options of bwrap for the system. /sys is left out: it shows, and as root changes, the host."""
    yield from ("--ro-bind", SYSTEM, SYSTEM)
    for name in _LINKS:
        path = Path("/") / name
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for file in _FILES:
        yield from ("--ro-bind-try", file, file)


def library_path(bwrap: Path) -> Mapping[str, str]:
    """Returns variables for a bwrap that was unpacked beside its libraries instead of installed; none otherwise."""
    root = bwrap.parent.parent.parent
    if bwrap.parent != root / "usr" / "bin" or root == Path("/"):
        return {}
    directories = [*root.glob("usr/lib/*-linux-gnu"), *root.glob("lib/*-linux-gnu")]
    return {"LD_LIBRARY_PATH": ":".join(map(str, directories))} if directories else {}
