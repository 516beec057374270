"""The same no-op work through Ray on this machine: tasks, and calls of an async actor.

It runs in a process of its own, since Ray takes over a process that initialises it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import anyio
from callsheet.deploy.child import ParentLink
from callsheet.options.declaration import Option

_DEADLINE_S = 150.0
# Ray at its best and alone: no usage reports, no token check, no extra workers started ahead.
_ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


class RayUnavailableError(Exception):
    """Ray is not installed or did not finish; the message says which."""


@dataclass(frozen=True, slots=True)
class RaySettings:
    """How much work Ray gets.

    Attributes:
        windows: Calls in flight to try, each `ray.get` taking a whole window; the best of them counts.
        repetitions: Measurements of each window; their median counts.
    """

    calls: Annotated[int, Option("Calls in one of Ray's repetitions.", flag="--ray-calls", least=1)] = 4000
    windows: tuple[int, ...] = (1000, 4000)
    repetitions: int = 3


@dataclass(frozen=True, slots=True)
class RayResult:
    """Rates at the best window of each.

    Attributes:
        version: Ray's.
        tasks_per_s: No-op tasks, submitted and their results fetched.
        tasks_window: Tasks in flight at that rate.
        actor_calls_per_s: No-op calls of one async actor.
        actor_window: Calls in flight at that rate.
    """

    version: str
    tasks_per_s: float
    tasks_window: int
    actor_calls_per_s: float
    actor_window: int


async def measure_ray(settings: RaySettings) -> RayResult:
    """Measures Ray in a process of its own.

    Raises:
        RayUnavailableError: Ray is not installed, failed, or took too long.
    """
    with tempfile.TemporaryDirectory(prefix="callsheet-ray-") as directory:
        result, log = Path(directory) / "result.json", Path(directory) / "log"
        command = [sys.executable, "-m", __name__, "--settings", json.dumps(asdict(settings)), "--result", str(result)]
        with log.open("wb") as output, anyio.move_on_after(_DEADLINE_S):
            await anyio.run_process(
                command, check=False, stdout=output, stderr=subprocess.STDOUT, env={**os.environ, **_ENVIRONMENT}
            )
        if not result.exists():
            words = log.read_text(errors="replace").strip()[-2000:]
            raise RayUnavailableError(f"Ray gave no result within {_DEADLINE_S:g} s; its last words:\n{words}")
        return RayResult(**json.loads(result.read_text()))


def run_in_ray(settings: RaySettings) -> RayResult:
    """Starts Ray on all cores of this machine, measures, and stops it."""
    import ray

    # Not under TMPDIR: Ray puts sockets deep below it, and their paths are limited to 107 bytes.
    directory = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    cores = len(os.sched_getaffinity(0))
    ray.init(num_cpus=cores, include_dashboard=False, log_to_driver=False, _temp_dir=directory)
    try:
        actor_rate, actor_window = _best(ray.get, _actor_call(ray), settings)
        task_rate, task_window = _best(ray.get, ray.remote(_nothing).remote, settings)
    finally:
        ray.shutdown()
        shutil.rmtree(directory, ignore_errors=True)
    return RayResult(ray.__version__, task_rate, task_window, actor_rate, actor_window)


def _nothing() -> None:
    return None


class _AsyncActor:
    async def nothing(self) -> None:
        return None


def _actor_call(ray: Any) -> Callable[[], Any]:
    actor = ray.remote(num_cpus=0, max_concurrency=10_000)(_AsyncActor).remote()
    call: Callable[[], Any] = actor.nothing.remote
    return call


def _best(get: Callable[[list[Any]], Any], call: Callable[[], Any], settings: RaySettings) -> tuple[float, int]:
    """The best window's median rate, and that window; the first window runs once unmeasured to warm up."""
    _rate(get, call, settings.calls, settings.windows[0])
    rates = [
        (median([_rate(get, call, settings.calls, window) for _ in range(settings.repetitions)]), window)
        for window in settings.windows
    ]
    return max(rates)


def _rate(get: Callable[[list[Any]], Any], call: Callable[[], Any], calls: int, window: int) -> float:
    began = time.perf_counter()
    done = 0
    while done < calls:
        count = min(window, calls - done)
        get([call() for _ in range(count)])
        done += count
    return calls / (time.perf_counter() - began)


def main() -> None:
    """Entry point of Ray's process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", required=True, type=json.loads)
    parser.add_argument("--result", required=True, type=Path)
    arguments = parser.parse_args()
    ParentLink.adopt()
    settings = RaySettings(**{**arguments.settings, "windows": tuple(arguments.settings["windows"])})
    arguments.result.write_text(json.dumps(asdict(run_in_ray(settings))))


if __name__ == "__main__":
    main()
