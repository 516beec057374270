"""Sandboxes without isolation need no rights: root has few of them in most containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = """
import sys
from pathlib import Path

import anyio
from callsheet.managers.sandbox.backend import CommandSpec, SandboxSpec
from callsheet.managers.sandbox.build import build_backend
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings


async def main() -> None:
    directory = Path(sys.argv[1])
    settings = SandboxSettings("m", directory, isolation=Isolation.NONE, use_control_groups=False)
    backend = build_backend(settings, ManagerDirectory(directory, "m"))
    sandbox = await backend.create(SandboxSpec("s", 256, 16, 16, settings.cores), lambda _: None)
    try:
        outcome = await sandbox.execute(CommandSpec(("/bin/echo", "it works")), anyio.Event())
    finally:
        await sandbox.destroy()
        await backend.close()
    print(outcome.stdout.decode(), end="")


anyio.run(main)
"""


def _without_the_right_to_mount() -> list[str]:
    """What a command begins with to have it no more; nobody but root has it to begin with."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("setpriv is missing")
    return [setpriv, "--bounding-set", "-sys_admin", "--"]


def test_they_work_without_the_right_to_mount(tmp_path: Path) -> None:
    command = [*_without_the_right_to_mount(), sys.executable, "-c", _PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["it works"]), done.stdout + done.stderr
