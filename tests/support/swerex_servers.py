"""SWE-ReX's own client, and what it talks to: the facade, or SWE-ReX's own server as the reference."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.sandbox.probe import probe_bubblewrap
from callsheet.managers.sandbox.settings import Isolation
from callsheet.managers.supervision.processes import ChildProcess, ProcessSpec, run_process
from swerex.runtime.remote import RemoteRuntime

from tests.support.ports import free_port
from tests.support.waiting import until_so

TOKEN = "not-a-secret"
WAIT_S = 60.0


@asynccontextmanager
async def stack_of_sandboxes(data_dir: Path, **settings: Any) -> AsyncIterator[Stack]:
    """Runs a scheduler and a sandbox manager, with plain processes where bubblewrap does not work."""
    isolation = Isolation.BUBBLEWRAP if probe_bubblewrap().works else Isolation.NONE
    given = StackSettings(data_dir, managers=(Role.SANDBOX,), given={"isolation": isolation}, **settings)
    async with local_stack(given) as stack:
        yield stack


@asynccontextmanager
async def facade_process(scheduler: str, *arguments: str) -> AsyncIterator[ChildProcess]:
    """Runs `callsheet facade swerex`; its fact "address" is where it listens."""
    command = ("facade", "swerex", "--scheduler", scheduler, "--listen", "127.0.0.1:0", *arguments)
    spec = ProcessSpec("facade", "callsheet.cli.main", command, environment={"CALLSHEET_FACADE_TOKEN": TOKEN})
    async with run_process(spec) as process:
        yield process


def runtime_at(address: str, name: str = "", token: str = TOKEN) -> RemoteRuntime:
    """Returns a client as programs make it; without a name by host and port."""
    quiet = logging.getLogger("tests.swerex")
    quiet.setLevel(logging.CRITICAL + 1)
    host, _, port = address.rpartition(":")
    if name:
        return RemoteRuntime(host=f"http://{address}/{name}", auth_token=token, timeout=WAIT_S, logger=quiet)
    return RemoteRuntime(host=f"http://{host}", port=int(port), auth_token=token, timeout=WAIT_S, logger=quiet)


async def until_alive(runtime: RemoteRuntime) -> None:
    """Waits until a runtime is there.

    SWE-ReX's own wait gives each try a tenth of a second, and between tries blocks the loop that others' tries run in.

    Raises:
        TimeoutError: It did not come.
    """
    await until_so(lambda: runtime.is_alive(timeout=WAIT_S), every_s=0.05)


@asynccontextmanager
async def reference_server(directory: Path) -> AsyncIterator[str]:
    """Runs SWE-ReX's own server, unconfined, in a directory; yields its address."""
    port = free_port()
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--auth-token", TOKEN]
    with (directory / "server.log").open("wb") as log:
        process = await anyio.open_process(
            [sys.executable, "-m", "swerex.server", *arguments],
            cwd=directory,
            # Not this user's: Python tells a folder that may not be read from a program that is nowhere.
            env={**os.environ, "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        async with process:
            try:
                address = f"127.0.0.1:{port}"
                await until_alive(runtime_at(address))
                yield address
            finally:
                process.terminate()
