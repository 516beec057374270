"""OpenAI's agents use the facade: their own sandbox client, unchanged; run by scripts/others.py."""

from __future__ import annotations

import asyncio
import importlib
import io
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from scripts.programs.steps import expect, run_steps

e2b: Any = importlib.import_module("agents.extensions.sandbox.e2b")
sandbox: Any = importlib.import_module("agents.sandbox")

# The facade's sandboxes have no image here: this directory can be written to.
ROOT = "/work/project"


async def _session(**options: Any) -> tuple[Any, Any]:
    client = e2b.E2BSandboxClient()
    # All else is the default, such as the pause at the end of its time.
    chosen = e2b.E2BSandboxClientOptions(sandbox_type="e2b", timeout=300, **options)
    session = await client.create(manifest=sandbox.Manifest(root=ROOT), options=chosen)
    await session.start()
    return client, session


async def _work() -> None:
    _, session = await _session(envs={"OWN": "of all"})
    done = await session.exec("echo $OWN; pwd; echo err >&2; exit 3", shell=True)
    expect("exec", (done.stdout, done.stderr, done.exit_code), (f"of all\n{ROOT}\n".encode(), b"err\n", 3))
    await session.mkdir("deep/er", parents=True)
    await session.write(Path("deep/er/file"), io.BytesIO(b"\0\xff"))
    expect("read", (await session.read(Path("deep/er/file"))).read(), b"\0\xff")
    expect("listed", [Path(entry.path).name for entry in await session.ls("deep")], ["er"])
    begun = await session.pty_exec_start("echo first; sleep 1; echo second", shell=True, yield_time_s=0.3)
    said, update = begun.output, begun
    while update.process_id is not None:
        update = await session.pty_write_stdin(session_id=update.process_id, chars="", yield_time_s=1)
        said += update.output
    expect("followed", (said, update.exit_code), (b"first\nsecond\n", 0))
    await session.rm("deep", recursive=True)
    expect("removed", (await session.exec("ls", shell=False)).stdout, b"")
    await session.shutdown()


async def _persist() -> None:
    _, first = await _session()
    await first.write(Path("kept"), io.BytesIO(b"kept"))
    archive = await first.persist_workspace()
    await first.shutdown()
    _, second = await _session()
    await second.hydrate_workspace(archive)
    expect("hydrated", (await second.read(Path("kept"))).read(), b"kept")
    await second.shutdown()


async def _pause() -> None:
    client, session = await _session(pause_on_exit=True)
    await session.write(Path("kept"), io.BytesIO(b"kept"))
    state = session.state
    await session.shutdown()
    again = await client.resume(state)
    await again.start()
    expect("the same sandbox", again.state.sandbox_id, state.sandbox_id)
    expect("kept", (await again.read(Path("kept"))).read(), b"kept")
    again.state.pause_on_exit = False
    await again.shutdown()


async def _many() -> None:
    async def one(number: int) -> None:
        _, session = await _session()
        await session.write(Path("mine"), io.BytesIO(str(number).encode()))
        expect("mine", (await session.exec("cat", "mine", shell=False)).stdout, str(number).encode())
        await session.shutdown()

    await asyncio.gather(*(one(number) for number in range(10)))


def main() -> int:
    """Runs all steps; returns 1 if one differs."""
    steps = {step.__name__.strip("_"): partial(_blocking, step) for step in (_work, _persist, _pause, _many)}
    return int(run_steps(steps))


def _blocking(step: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(step())


if __name__ == "__main__":
    sys.exit(main())
