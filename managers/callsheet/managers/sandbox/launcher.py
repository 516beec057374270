"""The launcher: a small single-threaded process that starts sandboxes for a manager.

A program of its own, run as `python -I -S launcher.py SOCKET MARKER [DIRECTORY ...]`. It exists because

- bwrap's --die-with-parent ends a sandbox when the THREAD that started it ends, and this process has only one;
- dropping to a pool user between fork and exec is safe here and is not in a process with threads;
- it ends when the manager's socket closes, however the manager ended, and every bwrap with it. Agents of plain
  processes see the same on sockets of their own.

As root it lives in a mount namespace of its own, in which it shows the given directories below /mnt: a pool user could
not walk to them through a home directory that only its owner may enter.

Requests are JSON packets with descriptors, answers are JSON packets:

    {"op": "spawn", "id", "path": null or path, "argv", "env", "uid": null or N, "groups": n}
        with descriptors: stderr, [program where path is null], n cgroup.procs, then those to inherit; "{fd:I}" in argv
        names the I-th of the last
    {"op": "kill", "pid"}
    {"event": "ready", "directories"}, {"event": "unusable", "message"}, {"event": "spawned", "id", "pid"},
    {"event": "failed", "id", "message"}, {"event": "exited", "pid", "status"}
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import json
import os
import resource
import select
import signal
import socket
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

LARGEST_PACKET = 1 << 17
MOST_DESCRIPTORS = 64
CLONE_NEWNS = 0x00020000
MS_BIND, MS_REC, MS_SLAVE = 0x1000, 0x4000, 0x80000
MOUNT_POINT = "/mnt"


def show_directories(directories: list[str]) -> list[str]:
    """Binds directories below /mnt in a mount namespace of this process's own; returns their new paths."""
    if not directories:
        return []
    library = ctypes.CDLL(None, use_errno=True)

    def check(result: int, what: str) -> None:
        if result != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"{what}: {os.strerror(number)}")

    check(library.unshare(CLONE_NEWNS), "a mount namespace")
    check(library.mount(None, b"/", None, MS_REC | MS_SLAVE, None), "private mounts")
    # Opened in the new namespace, to which the binds must belong, and before the new mount, which may hide them.
    sources = [os.open(directory, os.O_PATH | os.O_DIRECTORY) for directory in directories]
    check(library.mount(b"tmpfs", MOUNT_POINT.encode(), b"tmpfs", 0, b"mode=0755,size=1m"), "a tmpfs on " + MOUNT_POINT)
    shown = []
    for index, source in enumerate(sources):
        target = os.path.join(MOUNT_POINT, str(index))
        os.mkdir(target, 0o755)
        path = f"/proc/self/fd/{source}"
        check(library.mount(path.encode(), target.encode(), None, MS_BIND, None), directories[index])
        os.close(source)
        shown.append(target)
    return shown


class Launcher:
    """The loop: requests from the manager, ends of sandboxes."""

    def __init__(self, manager: socket.socket, marker: str) -> None:
        self.manager = manager
        self.marker = marker
        self.children: set[int] = set()
        self.wake_up, writer = os.pipe()
        os.set_blocking(self.wake_up, False)
        os.set_blocking(writer, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def tell(self, **event: Any) -> None:
        """Sends an event."""
        self.manager.send(json.dumps(event).encode())

    def serve(self) -> None:
        """Runs until the manager is gone."""
        parent = os.getppid()
        poll = select.poll()
        poll.register(self.manager, select.POLLIN)
        poll.register(self.wake_up, select.POLLIN)
        # A fork of the manager may hold the socket open after the manager's end; the parent's id tells as well.
        while os.getppid() == parent:
            ready = dict(poll.poll(1000))
            if self.wake_up in ready:
                self.reap()
            if self.manager.fileno() in ready and not self.take_request():
                return

    def reap(self) -> None:
        """Reports ended children."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_up, 4096)
        while self.children:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            self.children.discard(pid)
            self.tell(event="exited", pid=pid, status=status)

    def take_request(self) -> bool:
        """Carries out one packet; returns False at the end of the stream."""
        packet, control, _, _ = self.manager.recvmsg(
            LARGEST_PACKET, socket.CMSG_SPACE(MOST_DESCRIPTORS * 4), socket.MSG_CMSG_CLOEXEC
        )
        descriptors = array.array("i")
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
        try:
            if not packet:
                return False
            request = json.loads(packet)
            if request["op"] == "spawn":
                self.spawn(request, list(descriptors))
            elif request["op"] == "kill" and request["pid"] in self.children:
                os.kill(request["pid"], signal.SIGKILL)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def spawn(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Starts one sandbox. What goes wrong in the child before exec is written to its standard error."""
        try:
            pid = os.fork()
        except OSError as error:
            self.tell(event="failed", id=request["id"], message=str(error))
            return
        if pid == 0:
            be_sandbox(request, descriptors, self.marker)
        self.children.add(pid)
        self.tell(event="spawned", id=request["id"], pid=pid)


def be_sandbox(request: dict[str, Any], descriptors: list[int], marker: str) -> NoReturn:
    """Enters the cgroups, drops the privileges and executes; never returns."""
    try:
        errors = descriptors.pop(0)
        # By descriptor, a pool user can execute a program below a directory that it may not enter.
        program = request["path"] or descriptors.pop(0)
        groups, inherited = descriptors[: request["groups"]], descriptors[request["groups"] :]
        nothing = os.open("/dev/null", os.O_RDWR)
        for target, source in ((0, nothing), (1, nothing), (2, errors)):
            os.dup2(source, target)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        os.setsid()
        for group in groups:
            os.write(group, b"0")
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.umask(0o022)
        os.chdir("/")
        if request["uid"] is not None:
            os.setgroups([])
            os.setresgid(request["uid"], request["uid"], request["uid"])
            os.setresuid(request["uid"], request["uid"], request["uid"])
        argv = request["argv"]
        for index, descriptor in enumerate(inherited):
            os.set_inheritable(descriptor, True)
            argv = [word.replace(f"{{fd:{index}}}", str(descriptor)) for word in argv]
        os.execve(program, argv, {**request["env"], "CALLSHEET_SANDBOX_OF": marker})
    except OSError as error:
        os.write(2, f"launcher: {error}\n".encode())
    finally:
        os._exit(1)


def main() -> None:
    """Serves one manager."""
    manager = socket.socket(fileno=int(sys.argv[1]))
    manager.set_inheritable(False)
    try:
        directories = show_directories(sys.argv[3:]) if os.geteuid() == 0 else sys.argv[3:]
    except OSError as error:
        manager.send(json.dumps({"event": "unusable", "message": f"cannot show directories: {error}"}).encode())
        sys.exit(1)
    launcher = Launcher(manager, sys.argv[2])
    launcher.tell(event="ready", directories=directories)
    try:
        launcher.serve()
    except OSError:
        # The manager's end of the socket is gone.
        sys.exit(1)


main()
