"""Makes the directory of one layer from the members of its archive, by the rules of the OCI image format.

Every member lands inside the root: ".." at the root is the root, and links in the place of directories are followed as
a process in the image would follow them. The lower layers are looked at for such links, for the modes of directories
that the archive does not have, and for files that get another name. Standard library only: a child process runs it.
"""

from __future__ import annotations

import os
import posixpath
import shutil
import stat
import tarfile
from collections.abc import Iterator
from typing import IO

from callsheet.managers.sandbox.files.images.lower_layers import LowerLayers

SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID
# An entry counts so much beside its content: disks have about one inode for each few KiB.
ENTRY_BYTES = 4096
# What no image has, and what takes others' time or inodes.
MOST_ENTRIES = 1_000_000
MOST_DEPTH = 256
MOST_NAME_BYTES = 255
MOST_PATH_BYTES = 4095
_WHITEOUT, _OPAQUE, _OTHER_MARKS = ".wh.", ".wh..wh..opq", ".wh..wh."
_MOST_LINKS = 40
_LATEST = 1 << 33
_BLOCK = 1 << 20


class LayerRefusedError(Exception):
    """An archive is no layer that can be used; the message says why."""


class LayerTree:
    """The directory of a layer in the making; `bytes` is what it takes so far, about."""

    def __init__(self, root: str, lower: LowerLayers, limit_bytes: int, rule: str) -> None:
        """Args:
        root: An empty directory that nobody else writes to.
        lower: The layers below.
        limit_bytes: The most that it may take.
        rule: Why it may not take more.
        """
        self.bytes = 0
        self._entries = 0
        self._root = root
        self._lower = lower
        self._limit = limit_bytes
        self._rule = rule
        # Real directories of this layer, so that most members need no look at the disk for their parents.
        self._directories: set[str] = {""}
        self._deleted: set[str] = set()
        self._opaque: set[str] = set()

    def add(self, member: tarfile.TarInfo, content: IO[bytes] | None) -> None:
        """Adds one member; raises LayerRefusedError."""
        path = posixpath.normpath(f"/{member.name}").lstrip("/")
        self._count_entry(path)
        # What a sandbox has there is its own.
        if not path or path == "dev" or path.startswith("dev/"):
            return
        parent, name = self._directory(posixpath.dirname(path)), posixpath.basename(path)
        if name.startswith(_WHITEOUT):
            self._note_mark(parent, name)
            return
        path = _join(parent, name)
        if member.isdir():
            self._add_directory(path, member.mode)
            return
        if member.islnk():
            self._add_name(path, member.linkname)
            return
        self._clear(path)
        if member.isreg() and content is not None:
            self._add_file(path, member, content)
        elif member.issym():
            if not 1 <= (size := len(os.fsencode(member.linkname))) <= MOST_PATH_BYTES:
                rule = f"is a link to a path of {size} bytes: must have 1 to {MOST_PATH_BYTES}"
                raise LayerRefusedError(f"member {path[:200]!r}: {rule if size else 'is a link to nothing'}")
            os.symlink(member.linkname, self._place(path))
        elif self._seen_below(path) is not None:
            # A device or a pipe is left out, and what it takes the place of is gone all the same.
            self._deleted.add(path)

    def finish(self) -> list[str]:
        """Writes the marks that delete what lies below; returns the directories that are to hide those below them."""
        for path in sorted(self._deleted):
            status = self._own(path)
            if status is None and self._is_directory(posixpath.dirname(path)):
                os.mknod(self._place(path), stat.S_IFCHR, 0)
            elif status is not None and stat.S_ISDIR(status.st_mode):
                # Only what lies below is deleted, and not what this layer has there.
                self._opaque.add(path)
        return [path for path in sorted(self._opaque) if self._is_directory(path)]

    def _note_mark(self, parent: str, name: str) -> None:
        if name == _OPAQUE:
            self._opaque.add(parent)
        elif not name.startswith(_OTHER_MARKS):
            hidden = name.removeprefix(_WHITEOUT)
            if hidden in ("", ".", ".."):
                raise LayerRefusedError(f"member {_join(parent, name)[:200]!r}: deletes no entry of a directory")
            self._deleted.add(_join(parent, hidden))

    def _add_directory(self, path: str, mode: int) -> None:
        status = self._own(path)
        if status is None or not stat.S_ISDIR(status.st_mode):
            replaces = status is not None
            self._clear(path)
            os.mkdir(self._place(path))
            below = self._seen_below(path) if replaces else None
            if below is not None and stat.S_ISDIR(os.lstat(below).st_mode):
                # The archive had something else there before, which ended the directory below.
                self._opaque.add(path)
        self._directories.add(path)
        # Its owner must be able to go on in it: commands in the sandbox are not root for the disk.
        os.chmod(self._place(path), (mode & 0o7777 & ~SPECIAL_BITS) | stat.S_IRWXU)

    def _add_file(self, path: str, member: tarfile.TarInfo, content: IO[bytes]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        place = self._place(path)
        # Before a byte is written: a file of holes may be said to be larger than any disk.
        self._count(member.size)
        written = 0
        with open(os.open(place, flags, 0o600), "wb") as file:
            while block := content.read(_BLOCK):
                written += file.write(block)
        if written != member.size:
            raise LayerRefusedError(f"member {member.name[:200]!r}: is cut off after {written} of {member.size} bytes")
        os.chmod(place, member.mode & 0o7777 & ~SPECIAL_BITS)
        # Compiled Python modules are taken as current by the times of their sources.
        changed = member.mtime if 0 <= member.mtime <= _LATEST else 0
        os.utime(place, (changed, changed))

    def _add_name(self, path: str, target: str) -> None:
        """Gives a file another name; one of the layers below is copied for that."""
        clean = posixpath.normpath(f"/{target}").lstrip("/")
        original = _join(self._directory(posixpath.dirname(clean)), posixpath.basename(clean))
        if original == path:
            return
        status = self._own(original)
        if status is None:
            below = self._seen_below(original)
            if below is None or not (os.path.islink(below) or os.path.isfile(below)):
                raise LayerRefusedError(f"member {path[:200]!r}: is a name of {target[:200]!r}, which is no file here")
            self._count(os.lstat(below).st_size)
            shutil.copy2(below, self._place(original), follow_symlinks=False)
        elif stat.S_ISDIR(status.st_mode) or original.startswith(f"{path}/"):
            raise LayerRefusedError(f"member {path[:200]!r}: is a name of {target[:200]!r}, a directory or inside it")
        self._clear(path)
        os.link(self._place(original), self._place(path), follow_symlinks=False)

    def _directory(self, path: str) -> str:
        """Returns where the directory of a path really is, and makes it in this layer."""
        if path in self._directories:
            return path
        waiting, place, links = path.split("/")[::-1], "", 0
        while waiting:
            name = waiting.pop()
            if name in ("", "."):
                continue
            if name == "..":
                place = posixpath.dirname(place)
                continue
            here = _join(place, name)
            if here not in self._directories:
                link = self._enter(here)
                if link is not None:
                    links += 1
                    if links > _MOST_LINKS:
                        raise LayerRefusedError(f"directory {path[:200]!r}: is behind more than {_MOST_LINKS} links")
                    place = "" if link.startswith("/") else place
                    waiting.extend(link.split("/")[::-1])
                    continue
            place = here
        return place

    def _enter(self, path: str) -> str | None:
        """Returns the target of a link; makes a directory of anything else, with the mode of the one below."""
        found: str | None = self._place(path) if self._own(path) is not None else self._seen_below(path)
        mode = 0o755
        if found is not None:
            status = os.lstat(found)
            if stat.S_ISLNK(status.st_mode):
                return os.readlink(found)
            if stat.S_ISDIR(status.st_mode):
                mode = stat.S_IMODE(status.st_mode)
        self._count_entry(path)
        self._add_directory(path, mode)
        return None

    def _seen_below(self, path: str) -> str | None:
        """Returns the place where the layers below show an entry, unless this layer has deleted it."""
        if self._deleted or self._opaque:
            for above in _with_parents(path):
                if above in self._deleted or (above != path and above in self._opaque):
                    return None
        return self._lower.find(path)

    def _clear(self, path: str) -> None:
        """Removes what this layer has under a name."""
        status = self._own(path)
        if status is None:
            return
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(self._place(path))
            return
        shutil.rmtree(self._place(path))
        for kept in (self._directories, self._deleted, self._opaque):
            kept.difference_update([each for each in kept if each == path or each.startswith(f"{path}/")])

    def _own(self, path: str) -> os.stat_result | None:
        try:
            return os.lstat(self._place(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def _is_directory(self, path: str) -> bool:
        status = self._own(path)
        return status is not None and stat.S_ISDIR(status.st_mode)

    def _place(self, path: str) -> str:
        return f"{self._root}/{path}" if path else self._root

    def _count_entry(self, path: str) -> None:
        """Counts an entry of the disk, or one of the archive that is left out."""
        self._entries += 1
        name = len(os.fsencode(posixpath.basename(path)))
        for what, value, most in (
            ("entries", self._entries, MOST_ENTRIES),
            ("directories on the way", path.count("/"), MOST_DEPTH),
            ("bytes in its name", name, MOST_NAME_BYTES),
            ("bytes in its path", len(os.fsencode(path)), MOST_PATH_BYTES),
        ):
            if value > most:
                whose = "" if what == "entries" else f"member {path[:200]!r}: "
                raise LayerRefusedError(f"{whose}has {value} {what}: must have at most {most}")
        self._count(ENTRY_BYTES)

    def _count(self, more: int) -> None:
        self.bytes += more
        if self.bytes > self._limit:
            raise LayerRefusedError(f"takes more than {self._limit >> 20} MiB, which is {self._rule}")


def _join(parent: str, name: str) -> str:
    return f"{parent}/{name}" if parent else name


def _with_parents(path: str) -> Iterator[str]:
    while path:
        yield path
        path = posixpath.dirname(path)
    yield ""
