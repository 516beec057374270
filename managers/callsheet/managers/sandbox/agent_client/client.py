"""The manager's side of an agent. Everything the agent says is untrusted."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import anyio
from callsheet.managers.sandbox.agent_client.packets import (
    NoRoomError,
    PacketSocket,
    ProtocolError,
    RoomMaker,
    integer,
    memory_file,
)
from callsheet.managers.sandbox.errors import NoRoomInKernelError, SandboxError, SandboxLostError

_MOST_CPU_US = 10**15
_MOST_MEMORY_KIB = 1 << 40
_STAGES = frozenset({"run", "cwd", "path", "write", "archive", "read", "remove", "clear", "listen", "fork", "domain"})
_LARGEST_ERRNO = 4095
_LARGEST_VERSION = 1000
# Half of what the agent takes.
_LARGEST_REQUEST = 1 << 15


@dataclass(frozen=True, slots=True)
class AgentJobResult:
    """How a job ended.

    Attributes:
        status: As wait(2) tells it.
        cpu_s: CPU seconds of the process and the children it waited for.
        peak_memory_bytes: Largest resident size of one of them.
        refused: Where and with which errno it failed before it began; None if it began.
    """

    status: int
    cpu_s: float
    peak_memory_bytes: int
    refused: tuple[str, int] | None


class AgentJob:
    """Something the agent runs: `finished` with a `result` unless it was lost.

    `started` is set once it is a process, if that was asked for, and at its end.

    `killed` once it was killed with all other jobs: it ends soon, and is told after some of them.
    """

    def __init__(self, number: int, *, runs_command: bool = False) -> None:
        """A job that is asked for under a number."""
        self.number = number
        self.runs_command = runs_command
        self.killed = False
        self.started = anyio.Event()
        self.finished = anyio.Event()
        self.result: AgentJobResult | None = None


class AgentConnection:
    """The stream to one agent.

    Attributes:
        separates_commands: Whether it keeps each command out of the processes of others, see `agent/domains.py`.
    """

    def __init__(
        self,
        own: socket.socket,
        on_lost: Callable[[str], None],
        make_room: RoomMaker | None = None,
        make_room_for_command: RoomMaker | None = None,
    ) -> None:
        """Args:
        own: From `packets.socket_pair`.
        on_lost: Called when the agent is gone without `close`.
        make_room: See `PacketSocket`.
        make_room_for_command: Called before each command, to see to it that the kernel has what it needs.
        """
        self._on_lost = on_lost
        self._make_room_for_command = make_room_for_command
        self._jobs: dict[int, AgentJob] = {}
        self._signals: dict[int, anyio.Event] = {}
        self._next_id = 1
        self._hello = anyio.Event()
        self._pid = 0
        self.separates_commands = False
        self._loss: str | None = None
        self._lost = anyio.Event()
        self._packets = PacketSocket(own, self._handle, self._lose, make_room)

    @property
    def pid(self) -> int:
        """The agent's process id as this process sees it; the kernel vouches for it."""
        return self._pid

    @property
    def loss(self) -> str | None:
        """Returns why the agent is gone."""
        return self._loss

    async def until_hello(self) -> None:
        """Waits until the agent serves, or raises SandboxLostError."""
        await self._hello.wait()
        self._check()

    async def until_lost(self) -> None:
        """Waits until the agent is gone."""
        await self._lost.wait()

    @property
    def runs_commands(self) -> bool:
        """Returns whether the end of any command is still to come; the command may not have entered its group."""
        return any(job.runs_command for job in self._jobs.values())

    async def start(
        self,
        operation: Literal["run", "write", "read", "remove", "clear", "listen"],
        details: Mapping[str, object],
        descriptors: Sequence[int],
        *,
        tell_start: bool = False,
    ) -> AgentJob:
        """Asks for a job. The descriptors stay the caller's.

        Args:
            operation: What to do.
            details: How.
            descriptors: What it gets.
            tell_start: Whether `AgentJob.started` is wanted before the end.

        Raises:
            NoRoomInKernelError: It could not be sent; nothing was asked for.
            SandboxLostError: The agent is gone.
        """
        number = self._take_id()
        # Before the first wait: who looks meanwhile finds it.
        job = self._jobs[number] = AgentJob(number, runs_command=operation == "run")
        try:
            if job.runs_command and self._make_room_for_command is not None:
                await self._make_room_for_command()
            self._check()
            packet = {"op": operation, "id": number, "tell_start": tell_start}
            await self._send_request(packet, details, descriptors)
        except BaseException as error:
            self._jobs.pop(number, None)
            if isinstance(error, OSError):
                raise self._failed_send(error) from error
            raise
        return job

    async def _send_request(
        self, packet: Mapping[str, object], details: Mapping[str, object], descriptors: Sequence[int]
    ) -> None:
        """Sends a request with its details, which go in a file of their own where they are long."""
        if len(whole := json.dumps({**packet, "details": details}).encode()) <= _LARGEST_REQUEST:
            await self._packets.send(whole, descriptors)
            return
        file = memory_file("callsheet-request", json.dumps(details).encode())
        try:
            await self._packets.send(packet, [file, *descriptors])
        finally:
            os.close(file)

    async def signal(self, number: int) -> None:
        """Sends a signal to every process of the sandbox but the agent, and waits until it is done."""
        killed = list(self._jobs.values()) if number == signal.SIGKILL else []
        await self._signal({"op": "signal", "signal": number}, killed)

    async def kill(self, job: AgentJob) -> None:
        """Kills a job's process, and nothing that it started."""
        await self._signal({"op": "kill", "job": job.number})

    async def end(self) -> None:
        """Kills every process of the sandbox but the agent, and waits until nothing of them is left."""
        await self._signal({"op": "end"}, list(self._jobs.values()))

    async def hold(self) -> None:
        """Stops every process of the sandbox but the agent and those that begin later; no SIGCONT to all undoes it."""
        await self._signal({"op": "hold"})

    async def let_go(self) -> None:
        """Lets go on what `hold` stopped."""
        await self._signal({"op": "let_go"})

    async def interrupt(self, job: AgentJob | None, since: float) -> None:
        """Kills what began after `since`, in seconds since boot, but no job; then sends SIGUSR1 to one job, if any."""
        await self._signal({"op": "interrupt", "job": job.number if job is not None else 0, "since": since})

    async def _signal(self, packet: Mapping[str, object], killed: Sequence[AgentJob] = ()) -> None:
        self._check()
        request = self._take_id()
        done = self._signals[request] = anyio.Event()
        try:
            await self._packets.send({**packet, "id": request})
            # Not later: the command whose stop this is may end first, and nobody wait for the answer any more.
            for job in killed:
                job.killed = True
            await done.wait()
        except OSError as error:
            raise self._failed_send(error) from error
        finally:
            self._signals.pop(request, None)
        self._check()

    def close(self, reason: str) -> None:
        """Ends the stream, which ends the agent; those who wait get SandboxLostError."""
        self._packets.close()
        self._end(reason)

    def _check(self) -> None:
        if self._loss is not None:
            raise SandboxLostError(self._loss)

    def _failed_send(self, error: OSError) -> SandboxError:
        """Returns what a failed send means: an agent that could not be reached for a while is not lost."""
        if isinstance(error, NoRoomError) and self._loss is None:
            return NoRoomInKernelError(str(error))
        return SandboxLostError(self._loss or str(error))

    def _take_id(self) -> int:
        self._next_id += 1
        return self._next_id - 1

    def _lose(self, reason: str) -> None:
        if self._end(reason):
            self._on_lost(reason)

    def _end(self, reason: str) -> bool:
        """Wakes everyone; returns whether this was the first end."""
        if self._loss is not None:
            return False
        self._loss = reason
        self._lost.set()
        self._hello.set()
        for job in self._jobs.values():
            job.started.set()
            job.finished.set()
        for done in self._signals.values():
            done.set()
        self._jobs.clear()
        return True

    def _handle(self, packet: Mapping[str, object], sender: int) -> None:
        event = packet.get("event")
        if self._pid == 0 and event == "hello":
            self._pid = sender
            # Nothing that could make it lie has run yet.
            self.separates_commands = "landlock" in packet and integer(packet, "landlock", 0, _LARGEST_VERSION) > 0
            self._hello.set()
            return
        if sender != self._pid:
            raise ProtocolError(f"a packet from process {sender}")
        number = integer(packet, "id", 1, self._next_id - 1)
        if event == "started":
            if number in self._jobs:
                self._jobs[number].started.set()
            return
        if event == "signalled":
            done = self._signals.get(number)
            if done is not None:
                done.set()
            return
        if event != "exited" or number not in self._jobs:
            raise ProtocolError("an event out of place")
        result = AgentJobResult(
            integer(packet, "status", 0, 0xFFFF),
            integer(packet, "cpu_us", 0, _MOST_CPU_US) / 1e6,
            integer(packet, "peak_kib", 0, _MOST_MEMORY_KIB) * 1024,
            _refusal(packet.get("refused")),
        )
        job = self._jobs.pop(number)
        job.result = result
        job.started.set()
        job.finished.set()


def _refusal(value: object) -> tuple[str, int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or value[0] not in _STAGES:
        raise ProtocolError("refused: must be a stage and an errno")
    number = value[1]
    if not isinstance(number, int) or not 0 <= number <= _LARGEST_ERRNO:
        raise ProtocolError("refused: must be a stage and an errno")
    return str(value[0]), number
