"""What an agent says is untrusted: packets that break the protocol end it."""

from __future__ import annotations

import json
import os
import signal
import socket
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from callsheet.managers.sandbox.agent_client.client import AgentConnection
from callsheet.managers.sandbox.agent_client.packets import memory_file, socket_pair
from callsheet.managers.sandbox.errors import SandboxLostError


def say(other: socket.socket, **packet: Any) -> None:
    other.send(json.dumps(packet).encode())


class Agent:
    """An agent that says what a test wants."""

    def __init__(self) -> None:
        own, self.socket = socket_pair()
        self.socket.setblocking(False)
        self.losses: list[str] = []
        self.connection = AgentConnection(own, self.losses.append)

    def close(self) -> None:
        self.connection.close("the test is over")
        self.socket.close()


@pytest.mark.anyio
async def test_a_job_ends_with_what_the_agent_says() -> None:
    agent = Agent()
    try:
        say(agent.socket, event="hello")
        await agent.connection.until_hello()
        assert agent.connection.pid == os.getpid()
        job = await agent.connection.start("run", {}, [])
        say(agent.socket, event="started", id=1, pid=5)
        say(agent.socket, event="exited", id=1, status=256, cpu_us=1_500_000, peak_kib=10, refused=None)
        with anyio.fail_after(60):
            await job.finished.wait()
        assert job.result is not None
        assert (job.result.status, job.result.cpu_s, job.result.peak_memory_bytes) == (256, 1.5, 10240)
    finally:
        agent.close()


@pytest.mark.anyio
async def test_what_was_killed_with_everything_is_known_before_its_end_is_told() -> None:
    agent = Agent()
    try:
        say(agent.socket, event="hello")
        await agent.connection.until_hello()
        session, command = [await agent.connection.start("run", {}, []) for _ in range(2)]
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(agent.connection.signal, signal.SIGKILL)
            await anyio.wait_all_tasks_blocked()
            later = await agent.connection.start("run", {}, [])
            say(agent.socket, event="exited", id=command.number, status=9, cpu_us=0, peak_kib=0, refused=None)
            with anyio.fail_after(60):
                await command.finished.wait()
            tasks.cancel_scope.cancel()
        assert (session.killed, session.finished.is_set(), later.killed) == (True, False, False)
    finally:
        agent.close()


@pytest.mark.parametrize(
    "packet",
    [
        b"no json",
        b"[1]",
        b'"text"',
        b"{}",
        b"[" * 30_000,
        json.dumps({"event": "exited", "id": 99, "status": 0, "cpu_us": 0, "peak_kib": 0}).encode(),
        json.dumps({"event": "exited", "id": True, "status": 0, "cpu_us": 0, "peak_kib": 0}).encode(),
        json.dumps({"event": "exited", "id": 1, "status": 1 << 20, "cpu_us": 0, "peak_kib": 0}).encode(),
        json.dumps({"event": "exited", "id": 1, "status": 0, "cpu_us": -1, "peak_kib": 0}).encode(),
        json.dumps({"event": "exited", "id": 1, "status": 0, "cpu_us": 0, "peak_kib": "x"}).encode(),
        json.dumps(
            {"event": "exited", "id": 1, "status": 0, "cpu_us": 0, "peak_kib": 0, "refused": ["stage", 1]}
        ).encode(),
        json.dumps(
            {"event": "exited", "id": 1, "status": 0, "cpu_us": 0, "peak_kib": 0, "refused": ["run", "x"]}
        ).encode(),
        json.dumps({"event": "unknown", "id": 1}).encode(),
        b"x" * 100_000,
    ],
)
@pytest.mark.anyio
async def test_packets_that_break_the_protocol_end_the_sandbox(packet: bytes) -> None:
    agent = Agent()
    try:
        say(agent.socket, event="hello")
        await agent.connection.until_hello()
        job = await agent.connection.start("run", {}, [])
        agent.socket.send(packet)
        with anyio.fail_after(60):
            await job.finished.wait()
        assert job.result is None
        assert len(agent.losses) == 1
        with pytest.raises(SandboxLostError):
            await agent.connection.start("run", {}, [])
    finally:
        agent.close()


@pytest.mark.anyio
async def test_an_end_before_the_hello_is_a_loss() -> None:
    agent = Agent()
    agent.socket.close()
    with pytest.raises(SandboxLostError):
        await agent.connection.until_hello()
    agent.close()


@pytest.mark.anyio
async def test_many_requests_wait_for_room_in_the_socket() -> None:
    agent = Agent()
    try:
        async with anyio.create_task_group() as tasks:
            for _ in range(500):
                tasks.start_soon(agent.connection.start, "run", {}, [])
            received = 0
            while received < 500:
                await anyio.lowlevel.checkpoint()
                received += _drain(agent.socket)
    finally:
        agent.close()


def _drain(other: socket.socket) -> int:
    count = 0
    while True:
        try:
            _, descriptors, _, _ = socket.recv_fds(other, 65536, 8)
        except BlockingIOError:
            return count
        for descriptor in descriptors:
            os.close(descriptor)
        count += 1


def test_a_memory_file_cannot_be_changed() -> None:
    descriptor = memory_file("test", b"content")
    try:
        with pytest.raises(PermissionError):
            os.write(descriptor, b"x")
        with pytest.raises(PermissionError):
            os.truncate(f"/proc/self/fd/{descriptor}", 0)
        assert os.pread(descriptor, 100, 0) == b"content"
    finally:
        os.close(descriptor)
