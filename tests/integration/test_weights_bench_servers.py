"""Servers that the benchmark of policy versions starts and kills, and what it is not to be asked for."""

from __future__ import annotations

import shlex
import sys
import urllib.request
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from callsheet.benchmarks.weights.servers import running_servers
from callsheet.benchmarks.weights.settings import WeightsBenchSettings

pytestmark = pytest.mark.anyio
WAIT_S = 60
_TELLS_ITS_PID = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(str(os.getpid()).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


async def _pid(url: str) -> str:
    def ask() -> str:
        with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
            return str(answer.read().decode())

    with anyio.fail_after(WAIT_S):
        while True:
            try:
                return await anyio.to_thread.run_sync(ask)
            except OSError:
                await anyio.sleep(0.01)


async def test_a_killed_server_is_another_one_at_the_same_address(tmp_path: Path) -> None:
    command = f"{shlex.join([sys.executable, '-c', _TELLS_ITS_PID])} {{port}}"
    async with running_servers(command, 2, tmp_path) as (one, other):
        url, before = one.url, await _pid(one.url)
        assert await _pid(other.url) != before
        await one.restart()
        assert one.url == url
        assert await _pid(one.url) != before
    with pytest.raises(OSError, match="refused"):
        await anyio.to_thread.run_sync(urllib.request.urlopen, url)


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("--url or --server", {"engine": "sglang"}),
        ("embedded engine neither", {"urls": ("http://host:1",)}),
        ("with --url", {"engine": "sglang", "urls": ("http://host:1",), "server": "serve {port}"}),
        ("model", {"engine": "sglang", "server": "serve {port}"}),
        ("model", {"model": Path("model")}),
        ("sources", {"sources": ("tape",)}),
        ("faults: must be none", {"sources": ("disk", "group")}),
    ],
)
def test_options_that_do_not_fit_each_other_are_named(rule: str, given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rule):
        WeightsBenchSettings(**given)  # type: ignore[arg-type]
