"""The launcher's loop: requests from the manager, ends of sandboxes."""

from __future__ import annotations

import array
import contextlib
import json
import os
import resource
import select
import signal
import socket
import sys

from . import kernel
from .overlays import EMPTY, mount_overlays, probe_overlays, probe_separate, separate
from .settling import be_visitor, probe_system_v

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

LARGEST_PACKET = 1 << 17
MOST_DESCRIPTORS = 64
MOUNT_POINT = "/mnt"


def show_directories(directories: list[str]) -> list[str]:
    """Binds directories below /mnt in a mount namespace of this process's own; returns their new paths."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.leave_hosts_mounts()
    # Opened in the new namespace, to which the binds must belong, and before the new mount, which may hide them.
    sources = [os.open(directory, os.O_PATH | os.O_DIRECTORY) for directory in directories]
    kernel.mount("tmpfs", MOUNT_POINT, "tmpfs", 0, "mode=0755,size=1m")
    shown = []
    for index, source in enumerate(sources):
        target = os.path.join(MOUNT_POINT, str(index))
        os.mkdir(target, 0o755)
        kernel.mount(f"/proc/self/fd/{source}", target, None, kernel.MS_BIND)
        os.close(source)
        shown.append(target)
    # Each sandbox mounts its own file system here, in a namespace of its own.
    os.mkdir(os.path.join(MOUNT_POINT, "overlays"), 0o755)
    os.mkdir(EMPTY, 0o755)
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
            elif request["op"] == "settle":
                self.settle(request)
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

    def settle(self, request: dict[str, Any]) -> None:
        """Changes what bwrap has no option for, see `settling.py`."""
        reader, writer = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(reader)
            os.close(writer)
            self.tell(event="failed", id=request["id"], message=str(error))
            return
        if pid == 0:
            be_visitor(request, writer)
        os.close(writer)
        with open(reader, "rb") as report:
            problem = report.read(1024).decode(errors="replace")
        os.waitpid(pid, 0)
        if problem:
            self.tell(event="failed", id=request["id"], message=problem)
        else:
            self.tell(event="settled", id=request["id"])


def be_sandbox(request: dict[str, Any], descriptors: list[int], marker: str) -> NoReturn:
    """Enters the cgroups, drops the privileges and executes; never returns."""
    try:
        errors = descriptors.pop(0)
        # By descriptor, a pool user can execute a program below a directory that it may not enter.
        program = request["path"] or descriptors.pop(0)
        groups, inherited = descriptors[: request["groups"]], descriptors[request["groups"] :]
        report = inherited.pop(0) if request["overlays"] is not None else -1
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
        if report >= 0:
            with socket.socket(fileno=report) as socket_of_manager:
                mount_overlays(request["overlays"], request["uid"], socket_of_manager)
        if request["separate"]:
            if report < 0:
                kernel.unshare(kernel.CLONE_NEWNS)
                kernel.leave_hosts_mounts()
            separate(request["separate"])
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
    """Serves one manager, or says what can be done here."""
    if sys.argv[1] == "probe":
        probes = {"overlays": probe_overlays, "separate": probe_separate, "system_v": probe_system_v}
        reason = probes[sys.argv[2]]()
        json.dump({"works": not reason, "reason": reason}, sys.stdout)
        return
    manager = socket.socket(fileno=int(sys.argv[1]))
    manager.set_inheritable(False)
    isolates, directories = sys.argv[3] == "isolated", sys.argv[4:]
    try:
        # Without isolation nothing is mounted, and root may lack the right to: in most containers it does.
        if isolates and os.geteuid() == 0:
            directories = show_directories(directories)
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
