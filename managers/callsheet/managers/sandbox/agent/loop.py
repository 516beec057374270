"""The agent's loop: requests from the socket, ends of children."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import select
import sys
import time

# All that this program will ever use: nothing is loaded once there is code in the sandbox that could replace it.
from . import files, network
from .asking import Listener, listener_of
from .domains import Domains, NoDomains
from .paths import RefusedJobError, place_of
from .processes import Forks, descendants, interrupt, send_signal, signal_all, signal_everything, until_stopped
from .slim import call, parse, serialise, signal, socket

TYPE_CHECKING = False
if TYPE_CHECKING:  # Nothing is imported for annotations: every sandbox pays for this program's start.
    from collections.abc import Callable
    from typing import Any, NoReturn

PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
LARGEST_PACKET = 1 << 16
MOST_DESCRIPTORS = 8
DESCRIPTOR_BYTES = 4
CHUNK = 1 << 20
LOOK_MILLISECONDS = 1000
STOP_AGAIN_SECONDS = 1.0
# Descriptors that a command gets have lower numbers.
ABOVE_TARGETS = 64
SIGNALLING = frozenset({"signal", "kill", "end", "interrupt", "hold", "let_go"})
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# What a command finds at its default again; Python ignores the last two.
RESET_SIGNALS = (*IGNORED_SIGNALS, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)


class Agent:
    """The loop: requests from the socket, ends of children."""

    def __init__(
        self,
        manager: socket.socket,
        areas: dict[str, str],
        domains: Domains,
        forks: Forks,
        program: list[bytes],
        *,
        listener: Listener | None,
    ) -> None:
        self.manager = manager
        self.listener = listener
        self.areas = areas
        self.domains = domains
        self.program = program
        self.forks = forks
        self.held: set[int] = set()
        # Requests that are done when nothing is left.
        self.ending: list[int] = []
        self.jobs: dict[int, tuple[int, int]] = {}
        # Processes of this program itself: no pause is meant for them.
        self.helpers: set[int] = set()
        self.stopped = False
        self.next_stop = 0.0
        self.wake_up, self.wake_up_writer = os.pipe()
        os.set_blocking(self.wake_up, False)
        os.set_blocking(self.wake_up_writer, False)

    def serve(self) -> None:
        """Runs until the manager closes the socket."""
        for number in IGNORED_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wake_up_writer, warn_on_full_buffer=False)
        self.tell(event="hello", landlock=self.domains.version)
        poll = select.poll()
        poll.register(self.manager, select.POLLIN)
        poll.register(self.wake_up, select.POLLIN)
        if self.listener is not None:
            poll.register(self.listener.descriptor, select.POLLIN)
        parent = os.getppid()
        # A fork of the manager may hold the socket open after the manager's end; the parent's id tells as well.
        while os.getppid() == parent:
            ready = dict(poll.poll(None if parent == 0 and not self.stopped and not self.held else LOOK_MILLISECONDS))
            if self.wake_up in ready:
                self.reap()
            if self.listener is not None and self.listener.descriptor in ready:
                self.listener.answer()
            if self.manager.fileno() in ready and not self.take_request():
                return
            if (self.stopped or self.held) and time.monotonic() >= self.next_stop and not self.helpers:
                # What was ending when everything was stopped may have woken others by that.
                self.stop_again()

    def tell(self, **event: Any) -> None:
        """Sends an event."""
        self.manager.send(serialise(event))

    def reap(self) -> None:
        """Collects ended children after a word on the pipe."""
        os.read(self.wake_up, 4096)
        self.collect()

    def collect(self) -> None:
        """Collects ended children, jobs and the orphans of jobs."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                # All orphans are this process's children, so nothing is left at all.
                while self.ending:
                    self.tell(event="signalled", id=self.ending.pop())
                return
            if pid == 0:
                return
            self.helpers.discard(pid)
            self.held.discard(pid)
            if pid in self.jobs:
                job, reader = self.jobs.pop(pid)
                words = os.read(reader, 64).decode().split()
                os.close(reader)
                refused = [words[0], int(words[1])] if len(words) == 2 else None
                cpu = int((usage.ru_utime + usage.ru_stime) * 1e6)
                self.tell(event="exited", id=job, status=status, cpu_us=cpu, peak_kib=usage.ru_maxrss, refused=refused)

    def take_request(self) -> bool:
        """Carries out one packet; returns False at the end of the stream."""
        packet, control, _, _ = self.manager.recvmsg(
            LARGEST_PACKET, socket.CMSG_SPACE(MOST_DESCRIPTORS * DESCRIPTOR_BYTES), socket.MSG_CMSG_CLOEXEC
        )
        descriptors = []
        for level, kind, data in control:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                descriptors += numbers_in(data)
        try:
            if not packet:
                return False
            request = parse(packet)
            if request["op"] in SIGNALLING:
                self.signal(request)
                if request["op"] == "end":
                    self.ending.append(request["id"])
                    self.collect()
                else:
                    self.tell(event="signalled", id=request["id"])
            else:
                self.start(request, descriptors)
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        return True

    def signal(self, request: dict[str, Any]) -> None:
        """Carries out a request that signals processes."""
        operation = request["op"]
        if operation == "kill":
            send_signal(self.process_of(request["job"]), signal.SIGKILL)
        elif operation == "end":
            signal_everything(signal.SIGKILL)
        elif operation == "interrupt":
            interrupt(self.process_of(request["job"]), request["since"], spared=set(self.jobs))
        elif operation == "hold":
            signal_everything(signal.SIGSTOP)
            # None of them can start another any more.
            self.held = set(descendants())
            until_stopped(self.held)
        elif operation == "let_go":
            for pid in self.held:
                send_signal(pid, signal.SIGCONT)
            self.held.clear()
        else:
            self.signal_all(request["signal"])

    def signal_all(self, number: int) -> None:
        """Signals every process of the sandbox but this one."""
        if number == signal.SIGSTOP:
            self.stop_everything()
        elif number == signal.SIGCONT:
            self.stopped = False
            if self.held:
                signal_all(lambda: [pid for pid in descendants() if pid not in self.held], number)
            else:
                signal_everything(number)
        else:
            signal_everything(number)

    def stop_everything(self) -> None:
        """Stops every process of the sandbox but this one; where there are any, they are to be stopped again."""
        self.stopped = signal_everything(signal.SIGSTOP)
        self.next_stop = time.monotonic() + STOP_AGAIN_SECONDS

    def stop_again(self) -> None:
        """Stops what is to stand still, wherever it goes on."""
        if self.stopped:
            self.stop_everything()
            return
        for pid in self.held:
            send_signal(pid, signal.SIGSTOP)
        self.next_stop = time.monotonic() + STOP_AGAIN_SECONDS

    def process_of(self, wanted: int) -> int | None:
        """Returns the process of a job; None once it has ended."""
        return next((pid for pid, (job, _) in self.jobs.items() if job == wanted), None)

    def start(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Starts a job in a child process."""
        job, operation, details = request["id"], request["op"], request.get("details")
        if details is None:
            # They were too long for the packet.
            details, descriptors = parse(read_all(descriptors[0])), descriptors[1:]
        reader, writer = os.pipe()
        try:
            work_of_child = self.work_of(operation, details, descriptors, writer)
            pid = self.forks.fork()
        except (OSError, RefusedJobError) as error:
            os.close(reader)
            os.close(writer)
            refused = [error.stage, error.number] if isinstance(error, RefusedJobError) else ["fork", error.errno]
            self.tell(event="exited", id=job, status=0, cpu_us=0, peak_kib=0, refused=refused)
            return
        if pid == 0:
            be_child(operation, work_of_child, writer)
        os.close(writer)
        self.jobs[pid] = (job, reader)
        if operation != "run":
            self.helpers.add(pid)
        if request.get("tell_start"):
            self.tell(event="started", id=job)

    def work_of(
        self, operation: str, details: dict[str, Any], descriptors: list[int], report: int
    ) -> Callable[[], None]:
        """Returns what the child of a job does; raises RefusedJobError."""
        work = self.areas["work"]
        if operation == "run":
            return command(details, descriptors, work, self.domains)
        if operation == "listen":
            return lambda: network.listen(details, descriptors[0])
        if operation == "remove":
            return lambda: files.remove(details, work)
        if operation == "clear":
            return lambda: files.clear(details, work)
        if operation == "read":
            return lambda: files.send_file(details, descriptors[0], self.areas[details["area"]])
        if details["unpack"]:
            return self.unpacker(details, descriptors[0], report)
        return lambda: files.write(details, descriptors[0], work)

    def unpacker(self, details: dict[str, Any], content: int, report: int) -> Callable[[], None]:
        """Returns what becomes the program that unpacks an archive."""
        root, components = place_of(self.areas["work"], details["path"])
        numbers = [b"%d" % number for number in (report, content, details["replaces"])]
        words = [b"unpack", *numbers, *map(encoded, (root, *components))]

        def become_unpacker() -> None:
            for descriptor in (report, content):
                os.set_inheritable(descriptor, True)
            self.domains.begin()
            os.execve(self.program[0], [*self.program, *words], {})

        return become_unpacker


def be_child(name: str, operation: Callable[[], None], report: int) -> NoReturn:
    """Does a job in the child; never returns. A refusal goes into the `report` pipe."""
    try:
        signal.set_wakeup_fd(-1)
        for number in RESET_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        operation()
        os._exit(0)
    except RefusedJobError as refusal:
        os.write(report, f"{refusal.stage} {refusal.number}".encode())
    except OSError as error:
        os.write(report, f"{name} {error.errno or errno.EIO}".encode())
    finally:
        os._exit(1)


def command(details: dict[str, Any], descriptors: list[int], work: str, domains: Domains) -> Callable[[], NoReturn]:
    """Returns what becomes a command. `details["targets"]` are the numbers that its descriptors get, in their order.

    All that can be done before the fork is done here: of what the two processes touch after it, the kernel copies page
    by page, and that is most of what a short command costs.
    """
    targets = details["targets"]
    given = list(zip(descriptors, targets))  # noqa: B905 - strict needs Python 3.10
    entries = descriptors[len(targets) :]
    root, components = place_of(work, details["cwd"])
    directory = os.path.join(root, *components)
    entered, below = encoded(directory), work if root == work else directory
    limits = [(getattr(resource, name), (soft, hard)) for name, (soft, hard) in details["limits"].items()]
    arguments = [encoded(argument) for argument in details["argv"]]
    environment = {encoded(name): encoded(value) for name, value in details["env"].items()}
    paths = paths_of(details["argv"][0], details["env"])

    def execute() -> NoReturn:
        for entry in entries:
            os.write(entry, b"0")
        # Out of the way first: a number that is wanted may be that of a descriptor still to be moved.
        moved = [
            (fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, ABOVE_TARGETS), target) for descriptor, target in given
        ]
        if 0 not in targets:
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        for descriptor, target in moved:
            os.dup2(descriptor, target)
        go_to(entered, below)
        for limit, values in limits:
            resource.setrlimit(limit, values)
        domains.begin()
        become(paths, arguments, environment)

    return execute


def paths_of(program: str, environment: dict[str, str]) -> list[bytes]:
    """Returns where a program may be, as `os.execvpe` looks for it."""
    places = [""] if "/" in program else environment.get("PATH", os.defpath).split(":")
    return [encoded(os.path.join(place, program)) for place in places]


def encoded(text: str) -> bytes:
    """Returns a text as the kernel takes it, whatever locale this program runs in. Raises RefusedJobError."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        raise RefusedJobError("run", errno.EILSEQ) from error


def go_to(directory: bytes, below: str) -> None:
    """Enters a directory; raises RefusedJobError if links on the way to it lead out of another one."""
    try:
        os.chdir(directory)
    except OSError as error:
        raise RefusedJobError("cwd", error.errno or errno.EIO) from error
    here = os.getcwd()
    if here != below and not here.startswith(f"{below.rstrip('/')}/"):
        raise RefusedJobError("cwd", errno.EPERM)


def become(paths: list[bytes], arguments: list[bytes], environment: dict[bytes, bytes]) -> NoReturn:
    """Becomes the first of some programs that can be executed. Raises OSError."""
    # Looked for first: each attempt in vain is an exception, for which more memory is touched than for all else here.
    for path in paths:
        if os.access(path, os.X_OK):
            break
    else:
        path = paths[0]
    failures = []
    for candidate in (path, *paths):
        try:
            os.execve(candidate, arguments, environment)
        except OSError as error:
            failures.append(error)
    # That a program may not be executed says more than that other places lack it.
    raise next((each for each in failures if each.errno not in (errno.ENOENT, errno.ENOTDIR)), failures[-1])


def numbers_in(data: bytes) -> list[int]:
    """Returns the descriptors that came with a packet."""
    ends = range(DESCRIPTOR_BYTES, len(data) + 1, DESCRIPTOR_BYTES)
    return [int.from_bytes(data[end - DESCRIPTOR_BYTES : end], sys.byteorder) for end in ends]


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


def join_manager(words: list[str]) -> socket.socket:
    """Returns the manager's socket: an inherited descriptor, or in a container a path, with a filter to install."""
    if words[0].isdigit():
        return socket.socket(fileno=int(words[0]))
    # Only containers pay for this import.
    from . import container

    manager = container.connect(words[0])
    container.install_filter(words.pop(3))
    return manager


def own_program() -> list[bytes]:
    """Returns the beginning of a command that runs this program, whose first word is a path that can be executed."""
    with open("/proc/self/cmdline", "rb") as file:
        words = file.read().split(b"\0")
    start = encoded(os.path.basename(sys.argv[0]))
    end = next(index for index, word in enumerate(words) if os.path.basename(word) == start)
    return [os.fsencode(os.readlink("/proc/self/exe")), *words[1 : end + 1]]


def main() -> None:
    """Serves until the manager is gone, then takes everything along."""
    words = sys.argv[1:]
    manager = join_manager(words)
    os.set_inheritable(manager.fileno(), False)
    program = own_program()
    # Plain processes have nothing that keeps them in, and may change to other users, which domains forbid.
    forks = Forks()
    domains = Domains() if os.getpid() == 1 else NoDomains()
    if os.getpid() == 1:
        # Nobody inside may look into this process, although it has the same user id.
        call("prctl", PR_SET_DUMPABLE, 0, 0, 0, 0)
    else:
        call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    areas = {"work": os.path.realpath(sys.argv[2]), "temporary": sys.argv[3]}
    agent = Agent(manager, areas, domains, forks, program, listener=listener_of(words[3:]))
    try:
        agent.serve()
    except OSError:
        # The manager's end of the socket is gone: so is the reason to be here.
        sys.exit(1)
    finally:
        signal_everything(signal.SIGKILL)
