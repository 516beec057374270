"""Harbor itself, as it is published, in an environment of its own with nothing of Callsheet but the client."""

from __future__ import annotations

import json
import os
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from scripts import set_up
from scripts.others import interpreter
from tests.support.other_user import REPOSITORY

HARBOR = "harbor==0.26.0"
_PYTHON = "3.12"
_PLACE = REPOSITORY / "build" / "harbor"


def harbor_program() -> Path:
    """Installs Harbor, unless it is there; returns its `harbor`. Skips where there is no Python for it."""
    python = interpreter(_PYTHON)
    if python is None:
        pytest.skip(f"there is no Python {_PYTHON} on this machine; Harbor needs it")
    done, own = _PLACE / "callsheet-set-up", _PLACE / "bin" / "python"
    pyproject = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    wanted = f"{HARBOR}\n{pyproject['project']['dependencies']}\n{pyproject['tool']['hatch']}\n"
    found = done.read_text() if done.is_file() else ""
    if not found.startswith(f"{HARBOR}\n"):
        subprocess.run([python, "-m", "venv", _PLACE], check=True)
        set_up.install("--quiet", HARBOR, into=own)
    if found != wanted:
        set_up.install("--quiet", "--editable", str(REPOSITORY), into=own)
        done.write_text(wanted)
    return _PLACE / "bin" / "harbor"


async def run_harbor(*words: str, directory: Path, address: str = "", timeout_s: float = 200.0) -> str:
    """Runs a program of Harbor's environment in a directory; returns what it printed.

    Args:
        words: The program, such as "harbor", and its arguments.
        directory: Where it runs.
        address: Of the scheduler.
        timeout_s: The most it may take.
    """
    own = {"HARBOR_TELEMETRY": "0", "CALLSHEET_SCHEDULER": address, "HOME": str(directory), "COLUMNS": "200"}
    # What this environment is told of Python is not meant for another one.
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    program, *arguments = words
    command = [str(harbor_program().parent / program), *arguments]
    with anyio.fail_after(timeout_s):
        ended = await anyio.run_process(command, cwd=directory, env={**variables, **own}, check=False, stderr=None)
    told = ended.stdout.decode()
    assert ended.returncode == 0, told
    return told


def trials_of(job: Path) -> Mapping[str, Mapping[str, Any]]:
    """Returns what Harbor wrote of each trial of a job, by the task's name."""
    found = [json.loads(path.read_text()) for path in sorted(job.glob("*/result.json"))]
    return {each["task_name"].rpartition("/")[2]: each for each in found}


def reward_of(trial: Mapping[str, Any]) -> float | str:
    """Returns a trial's reward, or why it has none."""
    if trial["exception_info"] is not None:
        return f"{trial['exception_info']['exception_type']}: {trial['exception_info']['exception_message']}"
    return float(trial["verifier_result"]["rewards"]["reward"])
