"""Changes a sandbox from inside its namespaces, where bwrap has no option for it, before anything runs there.

Nothing may be imported after the visit has begun, not even an encoding: the files are the sandbox's own.
"""

from __future__ import annotations

import os

from . import kernel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

SETTINGS = "/proc/sys"
TERMINALS = "/dev/pts"
# Settings of its namespaces would be its own to change. A sandbox with an image has a root, who owns what the first
# process has there: its score in a shortage of memory, for instance.
READ_ONLY = (SETTINGS, "/proc/1")
OF_IPC = "kernel/"
SHARED_MEMORY = "kernel/shmall"


def be_visitor(request: dict[str, Any], report: int) -> NoReturn:
    """Bounds what a sandbox can take of the kernel, and what it can change there; says what went wrong."""
    try:
        visit = kernel.Visit(request["pid"])
        settings = request["settings"]
        if os.geteuid() == 0:
            # Older kernels leave those of the IPC namespace to the machine's root, newer ones to that of the sandbox's
            # user namespace. Of all others this process has the machine's own before it is there.
            of_ipc = {name: value for name, value in settings.items() if name.startswith(OF_IPC)}
            written = of_ipc.keys() - write_settings(of_ipc).keys()
            visit.own()
            settings = {name: value for name, value in settings.items() if name not in written}
        refused = write_settings(settings)
        if refused:
            raise OSError(f"settings refused: {', '.join(refused)}")
        settle_mounts(request["files"], request["terminals"])
    except BaseException as error:
        # Whatever it is: a sandbox that is not settled must not begin.
        os.write(report, f"settling: {error!r}".encode())
    finally:
        os._exit(0)


def write_settings(settings: dict[str, str]) -> dict[str, str]:
    """Writes settings of the kernel for the namespaces that this process is in; returns those that were refused."""
    refused = {}
    for name, value in settings.items():
        try:
            kernel.write(os.path.join(SETTINGS, name), value)
        except FileNotFoundError:
            # A kernel that was built without the thing itself.
            continue
        except OSError:
            refused[name] = value
    return refused


def settle_mounts(files: dict[str, int], terminals: int) -> None:
    """Bounds files in memory and terminals by their numbers, and closes parts of /proc to writes."""
    for path, most in files.items():
        kernel.mount(None, path, None, kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NODEV, f"nr_inodes={most}")
    # Options that are not named are set to their defaults.
    options = f"max={terminals},mode=620,ptmxmode=666"
    kernel.mount(None, TERMINALS, None, kernel.MS_REMOUNT | kernel.MS_NOSUID | kernel.MS_NOEXEC, options)
    for path in READ_ONLY:
        kernel.mount(path, path, None, kernel.MS_BIND)
        flags = kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
        kernel.mount(None, path, None, kernel.MS_BIND | kernel.MS_REMOUNT | flags)


def probe_system_v() -> str:
    """Tries to bound System V objects in a child process; returns why that does not work, or nothing."""
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        _try_system_v(telling)
    os.close(telling)
    reason = os.read(told, 4096).decode(errors="replace")
    os.waitpid(child, 0)
    return reason


def _try_system_v(telling: int) -> NoReturn:
    try:
        if os.geteuid() != 0:
            kernel.enter_user_namespace(0, 0)
        kernel.unshare(kernel.CLONE_NEWIPC)
        kernel.write(os.path.join(SETTINGS, SHARED_MEMORY), "1")
    except OSError as error:
        os.write(telling, f"{SHARED_MEMORY}: {error}".encode())
    finally:
        os._exit(0)
