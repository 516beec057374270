"""The same no-op work through Ray on this machine: tasks, and calls of an async actor."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

from callsheet.benchmarks.dispatch.report import RayFigures
from callsheet.benchmarks.dispatch.settings import RaySettings
from callsheet.benchmarks.measuring.ray_process import answer_with_ray, ask_ray_process

_DEADLINE_S = 150.0


async def measure_ray(settings: RaySettings) -> RayFigures:
    """Measures Ray on all cores of this machine, in a process of its own.

    Raises:
        RayRunFailedError: Ray is not installed, failed, or took too long.
    """
    cores = len(os.sched_getaffinity(0))
    return RayFigures(**await ask_ray_process(__name__, cores, asdict(settings), _DEADLINE_S))


def _measure(ray: Any, settings: Any) -> dict[str, Any]:
    given = RaySettings(**settings)
    actor_rate, actor_window = _best(ray.get, _actor_call(ray), given)
    task_rate, task_window = _best(ray.get, ray.remote(_nothing).remote, given)
    return asdict(RayFigures(task_rate, actor_rate, task_window, actor_window, ray.__version__))


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


if __name__ == "__main__":
    answer_with_ray(_measure)
