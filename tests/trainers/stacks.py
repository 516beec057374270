"""A whole stack of `callsheet up`, as processes of another environment than the trainer's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

STOP_TIMEOUT_S = 30.0


def callsheet_command() -> str:
    """The `callsheet` that serves: of the environment that runs these tests' script, else the one on the path."""
    found = os.environ.get("CALLSHEET_COMMAND") or shutil.which("callsheet")
    if not found:
        raise RuntimeError("CALLSHEET_COMMAND is to name the callsheet that serves, with all its extras")
    return found


@contextmanager
def running_stack(data_dir: Path, model: Path | None, *options: str) -> Iterator[str]:
    """Runs a scheduler with sandboxes and an engine of a model; gives the scheduler's address."""
    managers = "sandbox" if model is None else "sandbox,inference"
    command = [callsheet_command(), "up", "--json", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0"]
    command += [
        "--managers",
        managers,
        "--gateway",
        "none",
        "--isolation",
        "none",
        "--drain-s",
        "1",
    ]
    command += [] if model is None else ["--model", str(model), "--engine-threads", "1"]
    # What a trainer's environment is told of Python is not meant for another one.
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with (data_dir.parent / f"{data_dir.name}.log").open("wb") as log:
        process = subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=log, env=environment)
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            raise RuntimeError(f"callsheet up ended:\n{Path(log.name).read_text()[-2000:]}")
        yield json.loads(said)["address"]
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for(what: str, condition: object, timeout_s: float = 120.0) -> None:
    """Waits until a function returns something true."""
    assert callable(condition)
    ends = time.monotonic() + timeout_s
    while time.monotonic() < ends:
        if condition():
            return
        time.sleep(0.1)
    raise TimeoutError(f"{what} did not come within {timeout_s:g} s")


def kill_sandboxes_once_begun(log: Path) -> None:
    """Kills the manager of sandboxes as soon as commands have begun in them; its stack starts it again."""
    wait_for("the first command", log.exists)
    for up in psutil.Process().children():
        for child in up.children(recursive=True):
            if "sandbox" in child.cmdline() and "scheduler" not in child.cmdline():
                child.kill()
                return
    raise AssertionError("no manager of sandboxes is there")
