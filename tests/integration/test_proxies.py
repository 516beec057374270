"""Proxy variables of the environment: Callsheet's own connections go past them unless a setting says otherwise."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from callsheet.client import Client, ClientOptions, ConnectionLostError, InvalidArgumentError
from callsheet.client.session.target import from_environment

from tests.support.waiting import block_until

_CALLSHEET = (sys.executable, "-m", "callsheet.cli.main")
_WAIT_S = 100.0
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy", "ftp_proxy")
_VARIABLES = (*_PROXIES, *(name.upper() for name in _PROXIES))
_NOT_FOR = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


class SilentProxy:
    """Takes connections, keeps what they ask for, and never answers."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._taken: list[socket.socket] = []
        self.was_asked = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                taken, _ = self._listener.accept()
            except OSError:
                return
            self._taken.append(taken)
            threading.Thread(target=self._read, args=(taken,), daemon=True).start()

    def _read(self, taken: socket.socket) -> None:
        self.asked.append(taken.recv(65_536))
        self.was_asked.set()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        for each in (self._listener, *self._taken):
            each.close()


@pytest.fixture
def proxy() -> Iterator[SilentProxy]:
    made = SilentProxy()
    yield made
    made.close()


def _environment(proxy: SilentProxy) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in (*_VARIABLES, *_NOT_FOR)}
    return kept | dict.fromkeys(_VARIABLES, proxy.url) | {"no_proxy": "10.0.0.0/8"}


def test_a_stack_and_its_commands_go_past_every_proxy(proxy: SilentProxy, tmp_path: Path) -> None:
    environment = _environment(proxy)
    options = ("--managers", "sandbox,inference", "--isolation", "none", "--cpus", "2")
    command = (*_CALLSHEET, "up", "--json", "--listen", "127.0.0.1:0", "--data-dir", str(tmp_path), *options)

    def ask(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            (*_CALLSHEET, *words), env=environment, capture_output=True, text=True, check=False, timeout=_WAIT_S
        )

    def run(*words: str) -> str:
        told = ask(*words)
        assert told.returncode == 0, told.stderr
        return told.stdout

    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as stack:
        assert stack.stdout is not None
        try:
            announced = json.loads(stack.stdout.readline())
            scheduler = ("--scheduler", announced["address"])
            assert "40" in run("submit", "env-step", *scheduler, "--", "sh", "-c", "echo $((5 * 8))")
            assert json.loads(run("status", "--json", *scheduler))["managers"]
            block_until(lambda: ask("health", "--gateway", announced["gateway"]).stdout == "serving\n")
        finally:
            stack.terminate()
            stack.wait(_WAIT_S)
    assert proxy.asked == []


@pytest.mark.parametrize("variable", ["http_proxy", "https_proxy"])
@pytest.mark.anyio
async def test_a_setting_uses_the_proxy_and_leaves_out_its_exceptions(
    proxy: SilentProxy, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    for name in (*_VARIABLES, *_NOT_FOR):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, proxy.url)
    target, wanted = "127.0.0.1:1", ClientOptions(connect_timeout_s=0.5, use_proxy=True)
    for no_proxy in ("127.0.0.1", "127.0.0.0/8"):
        monkeypatch.setenv("no_proxy", no_proxy)
        with pytest.raises(ConnectionLostError):
            await Client.connect(target, wanted)
    monkeypatch.delenv("no_proxy")
    with pytest.raises(ConnectionLostError):
        await Client.connect(target, ClientOptions(connect_timeout_s=0.5))
    assert proxy.asked == []
    with pytest.raises(ConnectionLostError):
        await Client.connect(target, wanted)
    assert proxy.was_asked.wait(_WAIT_S)
    assert proxy.asked[0].startswith(b"CONNECT 127.0.0.1:1 ")


def test_the_environment_says_whether_to_use_it() -> None:
    for text, used in {"": False, "1": True, "TRUE": True, "yes": True, "on": True, "0": False, "off": False}.items():
        assert from_environment({"CALLSHEET_USE_PROXY": text})[1].use_proxy is used
    with pytest.raises(InvalidArgumentError, match="CALLSHEET_USE_PROXY"):
        from_environment({"CALLSHEET_USE_PROXY": "perhaps"})
