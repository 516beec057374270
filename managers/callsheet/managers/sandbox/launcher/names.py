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
    """Has an image know localhost and the name of its sandbox, and say that name itself.

    What it says of these names stays. So does whatever is no file under the name of one, and an /etc that leads
    nowhere.

    Args:
        root: The image, where it can be written.
        host_name: Of the sandbox.
        owner: User and group of all files in it.

    Raises:
        OSError: It cannot be written.
    """
    place = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    etc = -1
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir("etc", 0o755, dir_fd=place)
            os.chown("etc", *owner, dir_fd=place)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            etc = kernel.open_in(place, "etc", os.O_RDONLY | os.O_DIRECTORY)
        for name in ("hosts", "hostname") if etc >= 0 else ():
            found = _read(place, f"etc/{name}")
            if found is None:
                continue
            former, mode = found
            content = with_hosts(former, host_name) if name == "hosts" else f"{host_name}\n".encode()
            if content != former:
                _replace(etc, name, content, mode, owner)
    finally:
        os.close(place)
        if etc >= 0:
            os.close(etc)


def with_hosts(content: bytes, host_name: str) -> bytes:
    """Returns a file of hosts with lines for the names that it has no address for, of IPv4 or of IPv6. Pure."""
    known = set()
    for line in content.splitlines():
        address, _, names = line.partition(b"#")[0].strip().replace(b"\t", b" ").partition(b" ")
        known |= {(b":" in address, name) for name in names.split()}
    for address, names in ((b"127.0.0.1", (b"localhost", host_name.encode())), (b"::1", (b"localhost",))):
        lacking = [name for name in names if (b":" in address, name) not in known]
        if lacking:
            content += b"\n" if content and not content.endswith(b"\n") else b""
            content += b" ".join((address, *lacking)) + b"\n"
    return content


def _read(place: int, path: str) -> tuple[bytes, int] | None:
    """Returns a file's content and mode, empty for one that is not there; None for what is to stay."""
    try:
        # A pipe would wait for somebody who writes.
        descriptor = kernel.open_in(place, path, os.O_RDONLY | os.O_NONBLOCK)
    except FileNotFoundError:
        return b"", 0o644
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        is_read = stat.S_ISREG(status.st_mode) and status.st_size <= _LARGEST_BYTES
        return (os.read(descriptor, _LARGEST_BYTES), stat.S_IMODE(status.st_mode)) if is_read else None
    finally:
        os.close(descriptor)


def _replace(directory: int, name: str, content: bytes, mode: int, owner: tuple[int, int]) -> None:
    """Puts a new file in the place of a file or a link."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
    made = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    with open(made, "wb") as file:
        file.write(content)
        os.fchown(made, *owner)
        os.fchmod(made, mode)
