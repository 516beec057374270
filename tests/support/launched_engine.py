"""A contract server as a process of its own, with the faults that launched servers have.

`python -m tests.support.launched_engine WEIGHTS PLACE --host H --port P`. In PLACE it writes its process id and that of
a child in a session of its own, as `server.pid` and `child.pid`. Files there are faults: `crash` ends it at each start,
`silent` keeps it from listening while it is there, `deaf` has it ignore SIGTERM, `taken` has its port taken at the next
start.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from tests.support.contract_engine import ContractEngine
from tests.support.contract_sglang import ContractSGLang


def launch_command(weights: Path, place: Path) -> str:
    """The command that starts one, as a user would give it."""
    return f"{sys.executable} -m tests.support.launched_engine {weights} {place}"


def read_pid(place: Path, name: str) -> int:
    """The process id that was written under a name."""
    return int((place / f"{name}.pid").read_text())


def has_ended(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return _stat(pid)[0] in "ZX"
    except OSError:
        return True


def parent_of(pid: int) -> int:
    """The parent of a process."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


async def _serve(weights: Path, place: Path, port: int) -> None:
    server = ContractSGLang(partial(ContractEngine, weights))
    server.listen_on(port)
    await server.start()
    stop = asyncio.Event()
    if not (place / "deaf").exists():
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    print(f"serving on {port}", flush=True)  # noqa: T201 - a server's log
    while server.alive and not stop.is_set():  # noqa: ASYNC110 - one that dies of a request signals nothing
        await asyncio.sleep(0.02)


def main() -> None:
    """Serves until it is asked to end, or dies."""
    parser = argparse.ArgumentParser()
    parser.add_argument("weights", type=Path)
    parser.add_argument("place", type=Path)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    place: Path = given.place
    child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    for name, pid in (("child", child.pid), ("server", os.getpid())):
        (place / f"{name}.new").write_text(str(pid))
        (place / f"{name}.new").replace(place / f"{name}.pid")
    if (place / "crash").exists():
        print("no such model", flush=True)  # noqa: T201 - a server's log
        raise SystemExit(3)
    if (place / "deaf").exists():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while (place / "silent").exists():
        time.sleep(0.05)
    holder = socket.socket()
    if (place / "taken").exists():
        (place / "taken").unlink()
        holder.bind((given.host, given.port))
        holder.listen()
    asyncio.run(_serve(given.weights, place, given.port))


if __name__ == "__main__":
    main()
