"""The names that a sandbox has for itself, laid into its image as a container runtime does.

Images mostly lack /etc/hosts, or have an empty one, as whatever builds them mounts its own over it. What is there was
written by code that nobody trusts: no link leads out of the image, and nothing is written through one.
"""

from __future__ import annotations

import contextlib
import os
import stat

from . import kernel

# More than any list of hosts that is read at each look-up. A larger file stays as it is.
_LARGEST_BYTES = 1 << 20


def lay_names(root: str, host_name: str, owner: tuple[int, int]) -> None:
    """Lays localhost and the name of the sandbox into /etc/hosts of an image, and that name into /etc/hostname.

    Addresses that the image has for these names stay. Nothing is laid if a directory, a pipe or a device has the name
    of such a file, or if /etc is a link that leads nowhere. Descriptors stay open until the process executes bwrap.

    Args:
        root: The image, where it can be written.
        host_name: Of the sandbox.
        owner: User and group of all files in it.

    Raises:
        OSError: It cannot be written.
    """
    place = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    with contextlib.suppress(FileExistsError):
        os.mkdir("etc", 0o755, dir_fd=place)
        os.chown("etc", *owner, dir_fd=place)
    try:
        etc = kernel.open_in(place, "etc", os.O_RDONLY | os.O_DIRECTORY)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in ("hosts", "hostname"):
        former = _read(place, f"etc/{name}")
        if former is None:
            continue
        content = with_hosts(former, host_name) if name == "hosts" else f"{host_name}\n".encode()
        if content != former:
            _replace(etc, name, content, owner)


def with_hosts(content: bytes, host_name: str) -> bytes:
    """Returns a file of hosts with lines for the names that it has no address for, of IPv4 or of IPv6. Pure."""
    listed = (line.partition(b"#")[0].split() for line in content.splitlines())
    known = {(b":" in words[0], name) for words in listed for name in words[1:]}
    for address, names in ((b"127.0.0.1", (b"localhost", host_name.encode())), (b"::1", (b"localhost",))):
        lacking = [name for name in names if (b":" in address, name) not in known]
        if lacking:
            line_end = b"" if content[-1:] in b"\n" else b"\n"
            content += line_end + b" ".join((address, *lacking)) + b"\n"
    return content


def _read(place: int, path: str) -> bytes | None:
    """Returns the content of a file, empty for one that is not there; None for something else, which is to stay."""
    try:
        # A pipe would wait for somebody who writes.
        descriptor = kernel.open_in(place, path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return b""
    except OSError:
        return None
    status = os.fstat(descriptor)
    is_read = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_BYTES
    return os.read(descriptor, _LARGEST_BYTES) if is_read else None


def _replace(directory: int, name: str, content: bytes, owner: tuple[int, int]) -> None:
    """Puts a new file in the place of a file or a link."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=directory)
    with open(made, "wb") as file:
        file.write(content)
        os.fchown(made, *owner)
