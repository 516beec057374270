"""The manager's side of the launcher process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import anyio
import anyio.to_thread
import structlog
from callsheet.managers.open_files import raise_open_files
from callsheet.managers.sandbox.agent_client.packets import (
    NoRoomError,
    PacketSocket,
    ProtocolError,
    RoomMaker,
    integer,
    socket_pair,
)
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.isolation.kernel_bounds import KernelBounds
from callsheet.managers.sandbox.settings import Isolation

# -I and -S: nothing of the user's environment or site-packages runs in it.
_COMMAND = (sys.executable, "-I", "-S", str(Path(__file__).parent.with_name("launcher")))
_START_SECONDS = 20.0
_END_SECONDS = 5.0
_LARGEST_PID = 1 << 22

_log = structlog.get_logger(__name__)


class LauncherError(SandboxCreateError):
    """The launcher, or a process it was to start, does not run."""


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """One process to start.

    Attributes:
        argv: "{fd:I}" in a word becomes the number of the I-th inherited descriptor.
        stderr: Descriptor for its standard error.
        path: The program; None executes `program` instead.
        program: Descriptor of the program where `path` is None.
        environment: All of its environment.
        uid: The user and group id to drop to; None keeps the manager's.
        groups: Open cgroup.procs files to enter first.
        inherited: Descriptors it gets.
        overlays: What it mounts first, as `launcher/overlays.py` describes it.
        separate: Directories that it sees with file locks of its own; only as root.
        report: Socket over which a descriptor of what it mounted is sent.
    """

    argv: Sequence[str]
    stderr: int = -1
    path: str | None = None
    program: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    uid: int | None = None
    groups: Sequence[int] = ()
    inherited: Sequence[int] = ()
    overlays: Mapping[str, object] | None = None
    separate: Sequence[str] = ()
    report: int = -1


class Child:
    """A process that the launcher started."""

    def __init__(self, pid: int) -> None:
        """Args: pid: Of the process, which the launcher has not reaped before `ended` is set."""
        self.pid = pid
        self.ended = anyio.Event()


class LauncherClient:
    """Starts processes through one launcher. Use `start_launcher` to make one."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        """Args: process: The launcher, just started."""
        self._process = process
        self._packets: PacketSocket | None = None
        self._ready = anyio.Event()
        self._failure = ""
        self._directories: tuple[str, ...] = ()
        self._children: dict[int, Child] = {}
        self._asked: dict[int, tuple[anyio.Event, list[Child | str | None]]] = {}
        self._next_id = 1

    @property
    def alive(self) -> bool:
        """Returns whether the launcher can start processes."""
        return self._packets is not None and not self._failure

    @property
    def directories(self) -> Sequence[str]:
        """Returns the places, in sandboxes, of the directories named at the start, in their order."""
        return self._directories

    def attach(self, packets: PacketSocket) -> None:
        """Gives it its stream."""
        self._packets = packets

    async def until_ready(self) -> None:
        """Waits for its first word.

        Raises:
            LauncherError: It cannot work here; the message says why.
        """
        with anyio.move_on_after(_START_SECONDS):
            await self._ready.wait()
        if not self._ready.is_set() or self._failure:
            raise LauncherError(self._failure or f"the launcher said nothing for {_START_SECONDS:g} s")

    async def spawn(self, request: SpawnRequest) -> Child:
        """Starts a process; the caller closes its own descriptors afterwards.

        Raises:
            LauncherError: The launcher is gone or cannot fork. What fails later shows on the process's stderr.
        """
        program = [request.program] if request.path is None and request.program is not None else []
        packet = {
            "op": "spawn",
            "path": request.path,
            "argv": list(request.argv),
            "env": dict(request.environment),
            "uid": request.uid,
            "groups": len(request.groups),
            "overlays": request.overlays,
            "separate": list(request.separate),
        }
        report = [request.report] if request.overlays is not None else []
        descriptors = [request.stderr, *program, *request.groups, *report, *request.inherited]
        child = await self._ask(packet, descriptors)
        if child is None:
            raise LauncherError("an answer of the launcher out of place")
        return child

    async def settle(self, pid: int, bounds: KernelBounds) -> None:
        """Bounds what a sandbox can take of the kernel, and closes parts of its /proc to writes, before anything runs
        in it.

        Args:
            pid: Its first process.
            bounds: The bounds.

        Raises:
            LauncherError: The launcher is gone, or the kernel refuses.
        """
        words = {"files": dict(bounds.files), "terminals": bounds.terminals, "settings": dict(bounds.settings)}
        await self._ask({"op": "settle", "pid": pid, **words})

    async def kill(self, child: Child) -> None:
        """Sends SIGKILL; does nothing once the process was reaped or the launcher is gone (which kills as well)."""
        if self._packets is not None and not self._failure and not child.ended.is_set():
            try:
                await self._packets.send({"op": "kill", "pid": child.pid})
            except NoRoomError as error:
                _log.warning("sandbox_not_killed", pid=child.pid, reason=str(error))
            except OSError as error:
                self.on_closed(str(error))

    async def close(self) -> None:
        """Ends the launcher."""
        if self._packets is not None:
            self._packets.close()
            self._packets = None
        self.on_closed("the launcher is closed")
        await anyio.to_thread.run_sync(self._wait)

    def on_packet(self, packet: Mapping[str, object], sender: int) -> None:
        """Handles one packet of the launcher."""
        if sender != self._process.pid:
            raise ProtocolError(f"a packet from process {sender}")
        event = packet.get("event")
        if event == "ready":
            directories = packet.get("directories")
            self._directories = tuple(map(str, directories)) if isinstance(directories, list) else ()
            self._ready.set()
        elif event == "unusable":
            self.on_closed(str(packet.get("message")))
        elif event == "exited":
            child = self._children.pop(integer(packet, "pid", 1, _LARGEST_PID), None)
            if child is not None:
                child.ended.set()
        elif event in {"spawned", "settled", "failed"}:
            self._answer(packet)

    def on_closed(self, reason: str) -> None:
        """Everything it started dies with it; those who wait are told."""
        self._failure = self._failure or reason
        self._ready.set()
        for child in self._children.values():
            child.ended.set()
        self._children.clear()
        for done, _ in self._asked.values():
            done.set()

    async def _ask(self, packet: Mapping[str, object], descriptors: Sequence[int] = ()) -> Child | None:
        """Sends a request; returns the process that it started, if that was what was asked for."""
        if self._packets is None or self._failure:
            raise LauncherError(self._failure or "the launcher is closed")
        number = self._next_id
        self._next_id += 1
        done = anyio.Event()
        answer: list[Child | str | None] = []
        self._asked[number] = (done, answer)
        try:
            # Shielded: a process that was asked for must end up with an owner.
            with anyio.move_on_after(_START_SECONDS, shield=True):
                await self._packets.send({**packet, "id": number}, descriptors)
                await done.wait()
        except NoRoomError as error:
            raise LauncherError(str(error)) from error
        except OSError as error:
            raise LauncherError(f"the launcher is gone: {error}") from error
        finally:
            del self._asked[number]
        answered = answer[0] if answer else "no answer from the launcher"
        if isinstance(answered, str):
            raise LauncherError(answered)
        return answered

    def _answer(self, packet: Mapping[str, object]) -> None:
        answered: Child | str | None = None
        if packet["event"] == "spawned":
            answered = Child(integer(packet, "pid", 1, _LARGEST_PID))
            self._children[answered.pid] = answered
        elif packet["event"] == "failed":
            answered = str(packet.get("message"))
        waiting = self._asked.get(integer(packet, "id", 1, self._next_id))
        if waiting is not None:
            done, answer = waiting
            answer.append(answered)
            done.set()

    def _wait(self) -> None:
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, slots=True)
class KernelProbe:
    """Result of a probe whether the launcher can do something with this kernel, with the reason if it cannot."""

    works: bool
    reason: str


@cache
def probe_overlays() -> KernelProbe:
    """Tries it in a process of its own. Blocks for some tens of milliseconds, once."""
    return _probe("overlays")


@cache
def probe_system_v() -> KernelProbe:
    """Likewise: whether the launcher can bound the System V objects of a sandbox here."""
    return _probe("system_v")


@cache
def probe_separate() -> KernelProbe:
    """Likewise: whether the launcher can show the files of the system with locks of their own; only as root."""
    return _probe("separate") if os.geteuid() == 0 else KernelProbe(False, "this manager is not root")


def _probe(what: str) -> KernelProbe:
    try:
        done = subprocess.run(
            [*_COMMAND, "probe", what],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_START_SECONDS,
        )
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return KernelProbe(False, f"the probe of {what} failed: {error}")
    return KernelProbe(bool(answer["works"]), str(answer["reason"]))


async def start_launcher(
    marker: str, isolation: Isolation, directories: Sequence[Path], make_room: RoomMaker
) -> LauncherClient:
    """Starts a launcher.

    Args:
        marker: Put into the environment of everything it starts, for the janitor.
        isolation: Of its sandboxes; without any it mounts nothing.
        directories: Absolute directories that isolated sandboxes will bind.
        make_room: See `PacketSocket`.

    Raises:
        LauncherError: It cannot work here.
    """
    own, other = socket_pair()
    word = "plain" if isolation is Isolation.NONE else "isolated"

    def start() -> subprocess.Popen[bytes]:
        # It hands descriptors on as well; commands get a limit of their own.
        raise_open_files()
        # Its own session keeps Ctrl-C away.
        return subprocess.Popen(
            [*_COMMAND, str(other.fileno()), marker, word, *map(str, directories)],
            pass_fds=[other.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env={"CALLSHEET_SANDBOX_OF": marker},
            start_new_session=True,
        )

    try:
        process = await anyio.to_thread.run_sync(start)
    except BaseException:
        own.close()
        raise
    finally:
        other.close()
    client = LauncherClient(process)
    client.attach(PacketSocket(own, client.on_packet, client.on_closed, make_room))
    try:
        await client.until_ready()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await client.close()
        raise
    return client
