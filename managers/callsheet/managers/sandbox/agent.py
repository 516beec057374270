"""The agent: the first process of a sandbox, which starts commands and writes files on the manager's word.

A program of its own, run by the system's Python inside the sandbox as `python3 -I -S agent.py SOCKET WORK TEMPORARY`;
it imports nothing but the standard library and works with Python 3.8. As PID 1 of the sandbox it adopts every orphan
and its end is the sandbox's end; with plain processes it is a subreaper instead. It ends when the manager closes the
socket.

Requests are JSON packets with descriptors: the first one holds the request's details as JSON (a sealed memory file), so
that their size is not bounded by a packet. Every request that runs something is a job in a child process:

    {"op": "run", "id": N}    details, stdout, stderr, [stdin], [cgroup.procs, ...]
    {"op": "write", "id": N}  details, content
    {"op": "read", "id": N}   details, output
    {"op": "signal", "id": N, "signal": S}   S to all processes of the sandbox but the agent

    {"event": "hello"}, {"event": "started", "id", "pid"}, {"event": "signalled", "id"},
    {"event": "exited", "id", "status", "cpu_us", "peak_kib", "refused": null or [stage, errno]}
"""

from __future__ import annotations

import array
import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import signal
import socket
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # Nothing is imported for annotations: every sandbox pays for this program's start.
    import tarfile
    from typing import IO, Any, NoReturn

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
LARGEST_PACKET = 1 << 16
MOST_DESCRIPTORS = 8
CHUNK = 1 << 20
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class RefusedError(Exception):
    """A job that cannot be done; `stage` is a stable word."""

    def __init__(self, stage: str, number: int) -> None:
        super().__init__(stage)
        self.stage = stage
        self.number = number


def read_all(descriptor: int) -> bytes:
    """Returns a memory file's content, wherever its position is."""
    size = os.fstat(descriptor).st_size
    chunks = []
    offset = 0
    while offset < size:
        chunk = os.pread(descriptor, min(CHUNK, size - offset), offset)
        if not chunk:
            break
        chunks.append(chunk)
        offset += len(chunk)
    return b"".join(chunks)


def children_by_parent() -> dict[int, list[int]]:
    """Returns the processes that can be seen, by parent."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    return children


def descendants() -> list[int]:
    """Returns all processes below this one."""
    children = children_by_parent()
    found: list[int] = []
    waiting = [os.getpid()]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def signal_everything(number: int) -> None:
    """Signals every process of the sandbox but this one; as PID 1 atomically, so that a fork bomb cannot outrun it."""
    if os.getpid() == 1:
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return
        return
    # A stopped process cannot fork: stop until nothing new turns up, then send the signal itself.
    seen: set[int] = set()
    while True:
        new = [pid for pid in descendants() if pid not in seen]
        if not new:
            break
        seen.update(new)
        for pid in new:
            send_signal(pid, number if number == signal.SIGCONT else signal.SIGSTOP)
    if number not in (signal.SIGSTOP, signal.SIGCONT):
        for pid in seen:
            send_signal(pid, number)


def send_signal(pid: int, number: int) -> None:
    """Signals a process that may have ended."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def open_directory(root: str, components: list[str], create: bool) -> int:
    """Walks down from a directory without following symbolic links; returns a descriptor."""
    current = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for component in components:
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(component, 0o755, dir_fd=current)
            below = os.open(component, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=current)
        finally:
            os.close(current)
        current = below
    return current


def components_of(path: str) -> list[str]:
    """Splits a path; the manager checked it, and this checks again."""
    components = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/") or ".." in components or "\0" in path:
        raise RefusedError("path", errno.EINVAL)
    return components


def place_file(root: str, path: str, source: IO[bytes], mode: int) -> None:
    """Writes a file beside its place and renames it there, so that a symbolic link in its place is replaced."""
    components = components_of(path)
    if not components:
        raise RefusedError("path", errno.EISDIR)
    directory = open_directory(root, components[:-1], True)
    temporary = f".callsheet-{os.getpid()}"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(temporary, flags, 0o600, dir_fd=directory), "wb") as file:
            try:
                while True:
                    chunk = source.read(CHUNK)
                    if not chunk:
                        break
                    file.write(chunk)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.rename(temporary, components[-1], src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                os.unlink(temporary, dir_fd=directory)
                raise
    finally:
        os.close(directory)


def place_link(root: str, member: tarfile.TarInfo, base: list[str]) -> None:
    """Makes a link of an archive; both kinds must stay inside the directory that is unpacked into."""
    components = components_of(member.name)
    target = member.linkname if member.islnk() else "/".join([*components[:-1], member.linkname])
    if member.linkname.startswith("/") or os.path.normpath(target).split("/")[0] == "..":
        raise RefusedError("archive", errno.EPERM)
    directory = open_directory(root, base + components[:-1], True)
    try:
        if member.issym():
            os.symlink(member.linkname, components[-1], dir_fd=directory)
        else:
            linked = components_of(target)
            origin = open_directory(root, base + linked[:-1], False)
            try:
                os.link(linked[-1], components[-1], src_dir_fd=origin, dst_dir_fd=directory, follow_symlinks=False)
            finally:
                os.close(origin)
    finally:
        os.close(directory)


def unpack(root: str, path: str, content: int) -> None:
    """Unpacks a tar archive, plain or gzip.

    Stricter than the standard library's data filter, which older system Pythons lack: names that are absolute or climb,
    links that lead out, devices and paths through symbolic links are refused, and ownership and special bits dropped.
    """
    # Imported in the child of a job only: they would double the time that every sandbox takes to start.
    import gzip
    import tarfile
    import zlib

    base = components_of(path)
    os.close(open_directory(root, base, True))
    try:
        with open(os.dup(content), "rb") as file:
            file.seek(0)
            compressed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            stream: Any = gzip.GzipFile(fileobj=file) if compressed else file
            with tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    unpack_member(root, base, archive, member)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise RefusedError("archive", errno.EINVAL) from error


def unpack_member(root: str, base: list[str], archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
    """Makes one entry of an archive."""
    name = base + components_of(member.name)
    if member.isdir():
        os.close(open_directory(root, name, True))
    elif member.issym() or member.islnk():
        place_link(root, member, base)
    else:
        source = archive.extractfile(member) if member.isreg() else None
        if source is None:
            raise RefusedError("archive", errno.EPERM)
        place_file(root, "/".join(name), source, (member.mode & 0o755) | 0o600)


class Agent:
    """The loop: requests from the socket, ends of children."""

    def __init__(self, manager: socket.socket, work: str, temporary: str) -> None:
        self.manager = manager
        self.areas = {"work": work, "temporary": temporary}
        self.jobs: dict[int, tuple[int, int]] = {}
        self.wake_up, self.wake_up_writer = os.pipe()
        os.set_blocking(self.wake_up, False)
        os.set_blocking(self.wake_up_writer, False)

    def serve(self) -> None:
        """Runs until the manager closes the socket."""
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_up_writer, warn_on_full_buffer=False)
        self.tell(event="hello")
        poll = select.poll()
        poll.register(self.manager, select.POLLIN)
        poll.register(self.wake_up, select.POLLIN)
        parent = os.getppid()
        # A fork of the manager may hold the socket open after the manager's end; the parent's id tells as well.
        while os.getppid() == parent:
            ready = dict(poll.poll(None if parent == 0 else 1000))
            if self.wake_up in ready:
                self.reap()
            if self.manager.fileno() in ready and not self.take_request():
                return

    def tell(self, **event: Any) -> None:
        """Sends an event."""
        self.manager.send(json.dumps(event).encode())

    def reap(self) -> None:
        """Collects ended children: jobs, and the orphans of jobs."""
        with contextlib.suppress(BlockingIOError):
            os.read(self.wake_up, 4096)
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.jobs:
                job, reader = self.jobs.pop(pid)
                with open(reader, "rb") as report:
                    words = report.read(64).decode().split()
                refused = [words[0], int(words[1])] if len(words) == 2 else None
                cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
                self.tell(event="exited", id=job, status=status, cpu_us=cpu, peak_kib=usage.ru_maxrss, refused=refused)

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
            if request["op"] == "signal":
                signal_everything(request["signal"])
                self.tell(event="signalled", id=request["id"])
            else:
                self.start(request["id"], request["op"], list(descriptors))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def start(self, job: int, operation: str, descriptors: list[int]) -> None:
        """Starts a job in a child process."""
        details = json.loads(read_all(descriptors[0]))
        reader, writer = os.pipe()
        try:
            pid = os.fork()
        except OSError as error:
            os.close(reader)
            os.close(writer)
            self.tell(event="exited", id=job, status=0, cpu_us=0, peak_kib=0, refused=["fork", error.errno])
            return
        if pid == 0:
            be_child(operation, details, descriptors[1:], self.areas, writer)
        os.close(writer)
        self.jobs[pid] = (job, reader)
        self.tell(event="started", id=job, pid=pid)


def be_child(
    operation: str, details: dict[str, Any], descriptors: list[int], areas: dict[str, str], report: int
) -> NoReturn:
    """Does a job in the child; never returns. A refusal goes into the `report` pipe."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (*IGNORED_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        if operation == "run":
            execute(details, descriptors, areas["work"])
        elif operation == "write":
            write(details, descriptors[0], areas["work"])
        elif operation == "read":
            send_file(details, descriptors[0], areas["temporary"])
        os._exit(0)
    except RefusedError as refusal:
        os.write(report, f"{refusal.stage} {refusal.number}".encode())
    except OSError as error:
        os.write(report, f"{operation} {error.errno or errno.EIO}".encode())
    finally:
        os._exit(1)


def execute(details: dict[str, Any], descriptors: list[int], work: str) -> NoReturn:
    """Becomes the command."""
    descriptors = list(descriptors)
    output, errors = descriptors.pop(0), descriptors.pop(0)
    source = descriptors.pop(0) if details["stdin"] else os.open("/dev/null", os.O_RDONLY)
    for _ in range(details["groups"]):
        os.write(descriptors.pop(0), b"0")
    for target, descriptor in enumerate((source, output, errors)):
        os.dup2(descriptor, target)
    try:
        os.chdir(os.path.join(work, *components_of(details["cwd"])))
    except OSError as error:
        raise RefusedError("cwd", error.errno or errno.EIO) from error
    inside = os.path.realpath(work)
    if os.path.commonpath([inside, os.getcwd()]) != inside:
        raise RefusedError("cwd", errno.EPERM)
    for name, limit in details["limits"].items():
        resource.setrlimit(getattr(resource, name), (limit, limit))
    os.execvpe(details["argv"][0], details["argv"], details["env"])


def write(details: dict[str, Any], content: int, work: str) -> None:
    """Writes one file, or unpacks one archive."""
    if details["unpack"]:
        unpack(work, details["path"], content)
        return
    with open(os.dup(content), "rb") as source:
        source.seek(0)
        place_file(work, details["path"], source, details["mode"])


def send_file(details: dict[str, Any], output: int, temporary: str) -> None:
    """Copies a regular file of the temporary directory into a pipe, up to a limit."""
    components = components_of(details["path"])
    directory = open_directory(temporary, components[:-1], False)
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(components[-1], flags, dir_fd=directory), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RefusedError("read", errno.EINVAL)
        left = details["limit"]
        while left > 0:
            chunk = file.read(min(left, CHUNK))
            if not chunk:
                return
            left -= len(chunk)
            while chunk:
                chunk = chunk[os.write(output, chunk) :]


def main() -> None:
    """Serves until the manager is gone, then takes everything along."""
    manager = socket.socket(fileno=int(sys.argv[1]))
    manager.set_inheritable(False)
    library = ctypes.CDLL(None, use_errno=True)
    if os.getpid() == 1:
        # Nobody inside may look into this process, although it has the same user id.
        library.prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    else:
        library.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    agent = Agent(manager, sys.argv[2], sys.argv[3])
    try:
        agent.serve()
    except OSError:
        # The manager's end of the socket is gone: so is the reason to be here.
        sys.exit(1)
    finally:
        signal_everything(signal.SIGKILL)


main()
