"""Work through Ray, in a process of its own, since Ray takes over a process that initialises it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
from callsheet.deploy.child import ParentLink
from callsheet.managers.supervision.parent import PARENT_VARIABLE
from callsheet.options.temporary_directories import temporary_directory

# Ray at its best, alone and quiet: no usage reports, no token check, no warnings about accelerators, and workers that
# were started stay, also those of tasks that take less than a core.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_num_workers_soft_limit": "64",
}


class RayRunFailedError(Exception):
    """Ray is not installed, failed, or took too long; the message has its last words."""


async def ask_ray_process(module: str, cores: int, question: object, deadline_s: float) -> Any:
    """Runs a module whose `main` is `answer_with_ray`, and returns its answer; question and answer are JSON.

    Args:
        module: Its name.
        cores: What Ray may use.
        question: What the module's function is asked.
        deadline_s: Seconds until it is given up.

    Raises:
        RayRunFailedError: There was no answer.
    """
    with temporary_directory("callsheet-ray-") as directory:
        asked, result, log = (directory / name for name in ("question.json", "result.json", "log"))
        asked.write_text(json.dumps(question))
        command = [sys.executable, "-m", module, str(asked), str(result), str(cores)]
        with log.open("wb") as output, anyio.move_on_after(deadline_s):
            environment = {**os.environ, **_ENVIRONMENT, PARENT_VARIABLE: str(os.getpid())}
            await anyio.run_process(command, check=False, stdout=output, stderr=subprocess.STDOUT, env=environment)
        if not result.exists():
            words = log.read_text(errors="replace").strip()[-2000:]
            raise RayRunFailedError(f"Ray gave no result within {deadline_s:g} s; its last words:\n{words}")
        return json.loads(result.read_text())


def answer_with_ray(answer: Callable[[Any, Any], object]) -> None:
    """Entry point of Ray's process: starts Ray, lets `answer` have it and the question, and stops it."""
    asked, result, cores = sys.argv[1:]
    ParentLink.adopt()
    import ray

    # Not under TMPDIR: Ray puts sockets deep below it, and their paths are limited to 107 bytes.
    with temporary_directory("callsheet-ray-", Path("/tmp")) as directory:
        ray.init(num_cpus=int(cores), include_dashboard=False, log_to_driver=False, _temp_dir=str(directory))
        try:
            found = answer(ray, json.loads(Path(asked).read_text()))
        finally:
            ray.shutdown()
    Path(result).write_text(json.dumps(found))
