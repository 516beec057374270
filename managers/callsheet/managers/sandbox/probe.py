"""Finds out whether bubblewrap really isolates on this machine, by running a command in a real sandbox."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import anyio
from callsheet.managers.sandbox.backend import CommandSpec, SandboxSpec
from callsheet.managers.sandbox.build import build_backend
from callsheet.managers.sandbox.errors import SandboxCreateError, SandboxLostError
from callsheet.managers.sandbox.isolation.bubblewrap import find_bwrap
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.managers.supervision.remains import own_temporary_files

# An emulated or swamped machine takes a minute.
_PROBE_SECONDS = 120.0
_MANAGER_ID = "probe"


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Result of a probe.

    Attributes:
        works: Whether a command ran in a sandbox.
        reason: The reason why not, as a sentence without a full stop; empty if it works.
        bwrap: The program that was tried; None if there is none.
        capabilities: Abilities of sandboxes here, if it works.
    """

    works: bool
    reason: str
    bwrap: Path | None
    capabilities: dict[str, str]


def probe_bubblewrap() -> ProbeResult:
    """Runs a command in a sandbox and says whether that worked. Takes some tenths of a second.

    It happens in a process of its own, so it can be called with an event loop running (from a worker thread) or not.
    """
    bwrap = find_bwrap()
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__],
            check=False,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return ProbeResult(False, f"a sandbox did not answer for {_PROBE_SECONDS:g} s", bwrap, {})
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        last = done.stderr.decode(errors="replace").strip().rpartition("\n")[2]
        return ProbeResult(False, last or f"the probe ended with {done.returncode}", bwrap, {})
    return ProbeResult(bool(answer["works"]), str(answer["reason"]), bwrap, dict(answer["capabilities"]))


async def _try(directory: Path) -> dict[str, str]:
    """Runs one command; returns the capabilities, or raises what went wrong."""
    settings = SandboxSettings(_MANAGER_ID, directory)
    backend = build_backend(settings, ManagerDirectory(directory, _MANAGER_ID))
    spec = SandboxSpec("probe", memory_mib=256, disk_mib=16, max_processes=16, cores=settings.cores)
    try:
        sandbox = await backend.create(spec, lambda _: None)
        try:
            outcome = await sandbox.execute(CommandSpec(("/bin/sh", "-c", "exit 0")), anyio.Event())
        finally:
            await sandbox.destroy()
    finally:
        await backend.close()
    if outcome.failed:
        raise SandboxCreateError(f"a command in a sandbox ended with {outcome.exit_code} or signal {outcome.signal}")
    return dict(backend.capabilities())


def main() -> None:
    """Prints the answer as one JSON object."""
    with own_temporary_files("probe"):
        try:
            capabilities = anyio.run(functools.partial(_try, Path(tempfile.mkdtemp())))
            answer = {"works": True, "reason": "", "capabilities": capabilities}
        except (SandboxCreateError, SandboxLostError, OSError) as error:
            answer = {"works": False, "reason": str(error), "capabilities": {}}
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main()
