"""One node of a fleet: keeps an ordinary manager process running there. The same in any provider's process.

The process is tied by a pipe. When its other end closes, also because the provider's process was killed, the manager
drains and ends. Ray kills the children of a worker that ends. So the manager is a child of a shell, and that is all
that dies then.

Nodes of one machine share out its cores. Providers count cores and do not say which. A node takes those that no other
one has, or else those that the fewest have. A lock on a file for each of them ends with the process that has it,
however that ends.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import IO, Final

from callsheet.deploy.child import TIE_VARIABLE
from callsheet.managers.supervision.bounded_log import BoundedLog
from callsheet.managers.supervision.parent import READY_VARIABLE
from callsheet.managers.supervision.processes import command_module, send_to_group
from callsheet.managers.supervision.standing import ProcessPhase, ProcessStanding, RestartRule, begun, ended, now_serves
from callsheet.options.common import default_data_dir
from callsheet.options.private_files import make_own_directory, make_private_directory, write_private_file

_log = logging.getLogger(__name__)
_MOST_HOLDERS = 64

_LOCK_WAIT_S: Final = 30.0
RESTARTS: Final = RestartRule(initial_s=0.5, longest_s=30.0, healthy_after_s=30.0, first_failures=1, most_failures=4)
# A shell that stays, as the last word keeps it from becoming what it runs.
_SHELL: Final = ("/bin/sh", "-c", '"$@"; exit $?', "manager")
_CHUNK: Final = 65_536


def default_directory() -> Path:
    """Returns the directory of this user's locks, made if it is missing.

    Any user can put something in its place where temporary files go. Then it is in the user's own directory.

    Raises:
        OSError: It is nobody's place to be.
    """
    shared = Path(tempfile.gettempdir()) / f"callsheet-cores-{os.geteuid()}"
    try:
        make_own_directory(shared)
    except OSError as error:
        own = default_data_dir() / "cores"
        _log.warning("cannot use the shared directory: %s; core locks are kept in %s instead", error, own)
        make_private_directory(own.parent)
        make_own_directory(own)
        return own
    return shared


@contextmanager
def held_cores(count: int, usable: Sequence[int], directory: Path | None = None) -> Iterator[list[int]]:
    """Holds cores for the length of a `with` block, in the order in which they were found.

    Args:
        count: So many.
        usable: Those that there are.
        directory: Where the locks are.

    Raises:
        ValueError: There are not as many.
        OSError: The locks cannot be used.
    """
    if not 1 <= count <= len(usable):
        raise ValueError(f"cores: {count} must be between 1 and {len(usable)}, the cores that this machine lets us use")
    directory = directory or default_directory()
    with ExitStack() as locks:
        with _locked(directory / "all", wait_s=_LOCK_WAIT_S):
            cores = _take(count, usable, directory, locks)
        yield cores


def _take(count: int, usable: Sequence[int], directory: Path, locks: ExitStack) -> list[int]:
    taken: list[int] = []
    for holder in range(_MOST_HOLDERS):
        for core in usable:
            if core in taken or len(taken) == count:
                continue
            try:
                locks.enter_context(_locked(directory / f"{core}.{holder}", wait_s=0.0))
            except BlockingIOError:
                continue
            taken.append(core)
    if len(taken) < count:
        raise ValueError(f"cores: each of {list(usable)} is shared by {_MOST_HOLDERS} nodes already")
    return taken


@contextmanager
def _locked(path: Path, *, wait_s: float) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    give_up_at = time.monotonic() + wait_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= give_up_at:
                    raise BlockingIOError(f"{path}: was locked by another process for {wait_s:g} s") from error
            time.sleep(0.01)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOrder:
    """Processes that run on a node.

    Attributes:
        name: The node's, and its manager's id.
        role: The kind of the manager.
        cores: Cores that it gets.
        arguments: Words after `callsheet`.
        environment: Added to that of the provider's process there.
        log_path: Where the manager's output goes, on the node.
        files: Texts to write on the node before it begins, by path.
        secrets: More of its environment, such as its token. Providers keep them out of all that others can look up.
    """

    name: str
    role: str
    cores: int
    arguments: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    log_path: Path
    files: Mapping[Path, str] = field(default_factory=dict, repr=False)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


class NodePhase(StrEnum):
    """Phases in the life of a node.

    WAITING: its provider has no machine for it yet. STARTING: its manager has not registered yet. SILENT: its provider
    cannot say now, and it may run. ENDED: nothing of it runs, nor will again.
    """

    WAITING = "waiting"
    STARTING = "starting"
    SERVING = "serving"
    SILENT = "silent"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class FleetNode:
    """A node as its provider sees it.

    Attributes:
        name: Its own, and its manager's id.
        role: The kind of its manager.
        why: How its manager's newest end came about, or more about its phase; empty where there is nothing to say.
        failed: Whether it ended in another way than by leaving in good order.
        cores: The core ids that it has.
        place: The provider's machine that it is on, for people.
    """

    name: str
    role: str
    phase: NodePhase
    why: str = ""
    failed: bool = False
    cores: tuple[int, ...] = ()
    place: str = ""


class ManagerOnNode:
    """Runs the manager until it leaves or is stopped, and again if it ends otherwise. Its own thread does the work.

    Args:
        order: What runs; its secrets are not looked at.
    """

    def __init__(self, order: NodeOrder) -> None:
        self._order = order
        self._secrets: Mapping[str, str] = {}
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"node {order.name}")
        self._standing = ProcessStanding()
        self._cores: tuple[int, ...] = ()
        self._over = threading.Event()
        self._stopped = threading.Event()
        self._failed = False
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._tie = -1

    def begin(self, secrets: Mapping[str, str]) -> None:
        """Starts the manager with these in its environment; nothing if that was asked before."""
        with self._lock:
            if self._thread.ident is None:
                self._secrets = secrets
                self._thread.start()

    def report(self) -> FleetNode:
        """Returns the node's state."""
        phase = NodePhase.SERVING if self._standing.phase is ProcessPhase.SERVING else NodePhase.STARTING
        phase = NodePhase.ENDED if self._over.is_set() else phase
        return FleetNode(self._order.name, self._order.role, phase, self._standing.why, self._failed, self._cores)

    def stop(self, grace_s: float) -> None:
        """Has the manager drain and end, and returns when it has; kills it after a grace."""
        with self._lock:
            self._stopped.set()
            self._untie()
        if not self._over.wait(grace_s):
            self.kill()
            self._over.wait(grace_s)

    def kill(self) -> None:
        """Sends SIGKILL to the manager and its shell; it is started again unless it was stopped."""
        if self._process is not None and self._process.returncode is None:
            send_to_group(self._process.pid, signal.SIGKILL)

    def _untie(self) -> None:
        if self._tie >= 0:
            os.close(self._tie)
            self._tie = -1

    def _run(self) -> None:
        try:
            for path, text in self._order.files.items():
                make_private_directory(path.parent)
                write_private_file(path, text)
            with held_cores(self._order.cores, sorted(os.sched_getaffinity(0))) as cores:
                self._cores = tuple(cores)
                # Of this thread alone, and so of what it starts.
                os.sched_setaffinity(0, cores)
                self._keep()
        except (OSError, ValueError) as error:
            self._failed = True
            self._standing = ended(self._standing, str(error), time.monotonic(), RESTARTS)
        finally:
            self._over.set()

    def _keep(self) -> None:
        while not self._stopped.is_set():
            self._standing = begun(self._standing, time.monotonic())
            code = self._run_once()
            left = code == 0 or self._stopped.is_set()
            self._standing = ended(self._standing, _describe(code), time.monotonic(), RESTARTS, expected=left)
            self._failed = not left
            if left or self._standing.phase is ProcessPhase.GIVEN_UP:
                return
            self._stopped.wait(max(0.0, self._standing.next_start - time.monotonic()))

    def _run_once(self) -> int:
        """Runs the process to its end, and returns its exit code."""
        with self._lock:
            if self._stopped.is_set():
                return 0
            process, ready = self._open()
        log = BoundedLog(self._order.log_path)
        threading.Thread(target=_keep_log, args=(process.stdout, log), daemon=True).start()
        with ready:
            if ready.readline():
                self._standing = now_serves(self._standing, time.monotonic())
        code = process.wait()
        with self._lock:
            self._untie()
        return code

    def _open(self) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        # Starts the process, and returns it with the pipe on which it says that it has registered.
        tie_read, self._tie = os.pipe()
        ready_read, ready_write = os.pipe()
        told = {TIE_VARIABLE: str(tie_read), READY_VARIABLE: str(ready_write), "PYTHONUNBUFFERED": "1"}
        try:
            self._process = subprocess.Popen(
                [*_SHELL, sys.executable, "-m", command_module(), *self._order.arguments],
                env={**os.environ, **self._order.environment, **self._secrets, **told},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(tie_read, ready_write),
            )
        except BaseException:
            os.close(ready_read)
            self._untie()
            raise
        finally:
            os.close(tie_read)
            os.close(ready_write)
        return self._process, os.fdopen(ready_read, "rb")


def _keep_log(printed: IO[bytes], log: BoundedLog) -> None:
    # Takes what the process prints into its log, until nothing holds the other end any more.
    with printed:
        while chunk := os.read(printed.fileno(), _CHUNK):
            log.write(chunk)
    log.close()


def _describe(code: int) -> str:
    # A shell tells of a signal by a code above 128; one that got the signal itself has a negative code.
    number = code - 128 if code > 128 else -code
    return f"signal {signal.Signals(number).name}" if number > 0 else f"exit code {code}"
