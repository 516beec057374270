"""A `callsheet up` with rollouts in it, for a browser to look at, and the commands that tell the same."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import grpc
import psutil
import pytest
from callsheet.deploy.tokens import token_path
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.v1 import admin_service_pb2_grpc
from google.protobuf.message import Message

from tests.support import shown_rollouts
from tests.support.command_line import invoke
from tests.support.ports import free_port
from tests.support.waiting import block_until

_CALLSHEET = (sys.executable, "-m", "callsheet.cli.main")
_STOP_S = 60.0
_ANSWER_S = 60.0


@dataclass(frozen=True)
class ShownStack:
    """A running stack.

    Attributes:
        address: Of the scheduler.
        url: Of the dashboard, without a slash at its end.
        data_dir: Of all of it.
        tokens: The file of the scheduler's tokens; None where it asks for none.
        token: One for everything; empty where none is asked for.
        process: The `callsheet up`.
    """

    address: str
    url: str
    data_dir: Path
    tokens: Path | None
    token: str
    process: subprocess.Popen[str]

    def page(self, view: str, **query: str) -> str:
        """The address of a view."""
        return f"{self.url}/{view}{'?' if query else ''}{urlencode(query)}"

    def told(self, command: str, *arguments: str) -> Any:
        """What a command prints as JSON, with a token for everything."""
        words = (*command.split(), "--json", "--scheduler", self.address, *arguments)
        result = invoke(*words, **({"CALLSHEET_TOKEN": self.token} if self.token else {}))
        assert result.exit_code == 0, result.stderr
        return json.loads(result.stdout)

    def ask(self, rpc: str, request: Message) -> Any:
        """What an rpc for tools answers, with a token for everything."""
        with grpc.insecure_channel(self.address) as channel:
            call = getattr(admin_service_pb2_grpc.AdminServiceStub(channel), rpc)
            return call(request, timeout=_ANSWER_S, metadata=[("authorization", f"Bearer {self.token}")])

    def issue(self, scope: str, *subject: str) -> str:
        """Makes a token."""
        result = invoke("token", "issue", scope, *subject, "--tokens", str(self.tokens))
        assert result.exit_code == 0, result.stderr
        return result.stdout.strip()

    def audit(self, act: str) -> list[dict[str, Any]]:
        """The lines of the audit about an act."""
        tokens = self.tokens or self.data_dir / "tokens.json"
        result = invoke("audit", "--json", "--act", act, "--data-dir", str(self.data_dir), "--tokens", str(tokens))
        # It refuses where nothing was ever asked for.
        return [json.loads(line) for line in result.stdout.splitlines()] if result.exit_code == 0 else []


@contextmanager
def running_up(data_dir: Path, *options: str, tokens: bool) -> Iterator[ShownStack]:
    """Runs `callsheet up`; skips the test where sandboxes cannot be isolated."""
    if not (probe := probe_bubblewrap()).works:
        pytest.skip(f"bubblewrap does not work here: {probe.reason}")
    file = data_dir / "tokens.json" if tokens else None
    command = [*_CALLSHEET, "up", "--json", "--listen", "127.0.0.1:0", "--data-dir", str(data_dir), *options]
    if file is not None:
        assert invoke("token", "issue", "admin", "--tokens", str(file)).exit_code == 0
        command += ["--tokens", str(file)]
    with (data_dir / "up.log").open("w") as said:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line, (data_dir / "up.log").read_text()
        told = json.loads(line)
        token = token_path(data_dir, "admin").read_text().strip() if tokens else ""
        where = urlsplit(told["dashboard"])
        # It begins to listen when the managers have registered.
        block_until(lambda: _listens(where.hostname or "", where.port or 0))
        yield ShownStack(told["address"], told["dashboard"].rstrip("/"), data_dir, file, token, process)
    finally:
        _end(process)


@contextmanager
def running_rollouts(stack: ShownStack) -> Iterator[subprocess.Popen[str]]:
    """Runs the rollouts, and keeps their jobs open; yields their process."""
    environment = {**os.environ, "CALLSHEET_SCHEDULER": stack.address, "CALLSHEET_TOKEN": stack.token}
    command = [sys.executable, "-m", shown_rollouts.__name__]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == shown_rollouts.READY
        yield process
    finally:
        _end(process)


def kill(*processes: subprocess.Popen[str]) -> None:
    """Kills processes and all below them, one after another, as a machine's end does."""
    for process in processes:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        for each in family:
            with suppress(psutil.NoSuchProcess):
                each.kill()
        process.wait(_STOP_S)
        psutil.wait_procs(family[1:], timeout=_STOP_S)


@contextmanager
def dead_run(data_dir: Path) -> Iterator[str]:
    """Serves the dashboard of what a run left; yields its URL."""
    listen = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen([*_CALLSHEET, "dashboard", "--data-dir", str(data_dir), "--listen", listen], text=True)
    try:
        block_until(lambda: _listens("127.0.0.1", int(listen.rpartition(":")[2])))
        yield f"http://{listen}"
    finally:
        _end(process)


def _listens(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1.0).close()
    except OSError:
        return False
    return True


def _end(process: subprocess.Popen[str]) -> None:
    """Ends what is told so by its standard input, or else by Ctrl-C."""
    if process.stdin is None:
        process.send_signal(signal.SIGINT)
    try:
        process.communicate(timeout=_STOP_S)
    finally:
        process.kill()
        process.wait()
