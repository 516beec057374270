"""The agent has loaded everything before its first word: later, code that nobody trusts could be what is loaded."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from callsheet.managers.sandbox.agent_client.packets import memory_file
from callsheet.managers.sandbox.agent_client.program import AGENT_DIRECTORY, AGENT_START
from callsheet.managers.sandbox.isolation.bubblewrap import find_system_python

_SECONDS = 60.0
_WRITE = {"unpack": False, "directory": False, "replaces": False, "mode": 0o644}
# Every operation but the unpacking of archives, which is a program of its own.
_JOBS: dict[str, dict[str, object]] = {
    "run": {"argv": ["true"], "env": {}, "cwd": "", "targets": [], "limits": {}},
    "run in vain": {"argv": ["no-such-program"], "env": {"PATH": "/bin"}, "cwd": "none", "targets": [], "limits": {}},
    "write": {**_WRITE, "path": "file\u2713"},
    "write over what is there": {**_WRITE, "path": "other/file", "replaces": True},
    "write a directory": {**_WRITE, "path": "new/directory", "directory": True},
    "write in vain": {**_WRITE, "path": "../out"},
    "read": {"path": "file\u2713", "area": "work", "limit": 100},
    "read in vain": {"path": "missing", "area": "work", "limit": 100},
    "remove": {"path": "file\u2713"},
    "clear": {"path": "new"},
    "listen": {"port": 0},
}
_PACKETS: list[dict[str, object]] = [
    {"op": "signal", "signal": int(signal.SIGCONT)},
    {"op": "kill", "job": 1},
    {"op": "interrupt", "job": 1, "since": 1e12},
]


class _Agent:
    """An agent without a sandbox, whose Python tells on its standard error what it loads."""

    def __init__(self, place: Path) -> None:
        python = find_system_python()
        if python is None:
            pytest.skip("a python3 of the system is missing")
        (place / "work").mkdir()
        self.own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.own.settimeout(_SECONDS)
        self.errors = place / "errors"
        words = [str(other.fileno()), str(place / "work"), str(place)]
        with other, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [str(python), "-I", "-S", "-X", "importtime", str(AGENT_DIRECTORY / AGENT_START), *words],
                pass_fds=[other.fileno()],
                stderr=errors,
            )
        assert self.hear()["event"] == "hello"
        self._number = 0

    def hear(self) -> dict[str, object]:
        heard: dict[str, object] = json.loads(self.own.recv(1 << 16))
        return heard

    def ask(self, packet: dict[str, object], details: dict[str, object] | None, until: str) -> dict[str, object]:
        self._number += 1
        with ExitStack() as files:
            descriptors = []
            contents = [] if details is None else [json.dumps(details).encode(), b"content"]
            for content in contents[:1] if packet["op"] == "run" else contents:
                descriptors.append(memory_file("test", content))
                files.callback(os.close, descriptors[-1])
            if packet["op"] == "listen":
                near, far = socket.socketpair()
                files.enter_context(near)
                files.enter_context(far)
                descriptors[1] = far.fileno()
            if packet["op"] == "read":
                descriptors[1] = os.open("/dev/null", os.O_WRONLY)
                files.callback(os.close, descriptors[1])
            socket.send_fds(self.own, [json.dumps({**packet, "id": self._number}).encode()], descriptors)
        while True:
            heard = self.hear()
            if heard["event"] == until:
                return heard

    def loaded(self) -> list[str]:
        return [line for line in self.errors.read_text().splitlines() if line.startswith("import time:")]


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[_Agent]:
    agent = _Agent(tmp_path)
    yield agent
    agent.own.close()
    agent.process.wait(_SECONDS)


def test_no_operation_loads_anything(agent: _Agent) -> None:
    before = agent.loaded()
    assert any("processes" in line for line in before)
    for name, details in _JOBS.items():
        ended = agent.ask({"op": name.split()[0]}, details, "exited")
        assert (ended["refused"] is None) == ("in vain" not in name), (name, ended)
    for packet in _PACKETS:
        agent.ask(packet, None, "signalled")
    assert agent.loaded() == before


def test_the_same_files_are_found_by_the_program_that_unpacks(agent: _Agent, tmp_path: Path) -> None:
    ended = agent.ask({"op": "write"}, {**_WRITE, "path": "", "unpack": True}, "exited")
    assert ended["refused"] == ["archive", 22], "what it was given is no archive"
