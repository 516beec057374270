"""The models and workers of a host, and what became of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import anyio
from callsheet.managers.reward.hosted.model_spec import ModelSpec
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.reward.hosted.tickets import NoAnswer

# Relative to the value, or absolute for small ones. The input, the batch and the kernels are the same each time.
TOLERANCE = 1e-4
# A server may choose other kernels, and compute with other requests in its batch.
SERVER_TOLERANCE = 2e-2


def same_canary(stored: Sequence[float] | None, now: Sequence[float], tolerance: float = TOLERANCE) -> bool:
    """Returns whether an answer is right; without a stored one, whether a model could give it at all.

    Args:
        stored: Answer of the weights as they were first read from their source; None if this is that answer.
        now: The answer to judge.
        tolerance: The most by which a value may be off, relative to it, or absolute for small ones.
    """
    if not now or not all(map(math.isfinite, now)):
        return False
    if stored is None:
        return True
    return len(stored) == len(now) and all(
        abs(one - other) <= tolerance * max(1.0, abs(one)) for one, other in zip(stored, now, strict=True)
    )


class HostedWorker(Protocol):
    """Worker that computes models: a process of this manager's, or an inference server."""

    pid: int | None

    @property
    def alive(self) -> bool:
        """Returns whether the worker can be asked."""

    async def serve(self, ready: anyio.Event) -> int:
        """Runs or watches it until it is gone."""

    async def ask(self, do: str, timeout_s: float, **values: Any) -> dict[str, Any]:
        """Asks the worker to do something; WorkerDiedError or WorkerRefusedError if it does not."""


@dataclass(slots=True, eq=False)
class HostedModel:
    """A model and what became of it.

    Attributes:
        spec: What it is.
        parked_name: Name of a parked copy of its weights, were one needed.
        canary: What it said at first; None before.
        opened_by: The worker that has it open; None if none.
        failures: Times in a row that it could not come, or took its worker with it.
        blocked_until: Before that it is not tried again.
        problem: Why.
    """

    spec: ModelSpec
    parked_name: str
    canary: list[float] | None = None
    opened_by: HostedWorker | None = None
    failures: int = 0
    blocked_until: float = 0.0
    problem: NoAnswer | None = None


@dataclass(slots=True, eq=False)
class WorkerSlot:
    """A worker that is started again whenever it dies.

    Attributes:
        models: The models that run in it.
        process: The process, while it answers; None meanwhile.
        busy: Whether it computes a batch.
        deaths: Times in a row that it died without a batch between them.
    """

    models: tuple[str, ...]
    process: HostedWorker | None = None
    busy: bool = False
    deaths: int = 0

    @property
    def alive(self) -> HostedWorker | None:
        """The process, if it can be asked now."""
        return self.process if self.process is not None and self.process.alive else None


def slots_of(models: Iterable[HostedModel]) -> dict[str, WorkerSlot]:
    """A slot for each worker that the models name, and for each server."""
    by_worker: dict[str, list[str]] = {}
    for model in models:
        worker = f"server of {model.spec.name}" if model.spec.url else model.spec.worker
        by_worker.setdefault(worker, []).append(model.spec.name)
    return {worker: WorkerSlot(tuple(names)) for worker, names in by_worker.items()}


@contextmanager
def memory_file_of(settings: HostedSettings) -> Iterator[int | None]:
    """The arena that all workers of a CPU share; None for GPUs, where a process has its own."""
    if settings.devices != ("cpu",):
        yield None
        return
    file = os.memfd_create("callsheet-models")
    try:
        os.ftruncate(file, settings.budget_bytes)
        yield file
    finally:
        os.close(file)
