"""Publishes versions as a trainer does: from a directory, as tensors, or by a broadcast through a transfer group."""

from __future__ import annotations

import itertools
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from callsheet.benchmarks.weights import trainer
from callsheet.benchmarks.weights.engines import WeightsFleet
from callsheet.client import BroadcastTensor, Canary, Job, Tensors, TransferGroup
from callsheet.client.weights import Source
from callsheet.managers.inference.proof import CANARY_TOKENS, USUAL_PROMPT
from safetensors.torch import save, save_file

BROADCAST_S: Final = 120.0
LISTEN_LOOK_S: Final = 0.1
LOOPBACK: Final = "127.0.0.1"


@dataclass(eq=False)
class Publisher:
    """Publishes one version after another, from one source after another.

    Attributes:
        newest: The newest version.
    """

    job: Job
    fleet: WeightsFleet
    sources: tuple[str, ...]
    newest: int = 0
    _next: Iterator[str] = field(init=False)

    def __post_init__(self) -> None:
        self._next = itertools.cycle(self.sources)

    async def publish(self, mode: str, *, expected: bool = False, timeout_s: float = BROADCAST_S) -> None:
        """Publishes the next version.

        Args:
            mode: Of the update.
            expected: Whether the trainer's own answer to the canary goes with it. A group cannot do without.
            timeout_s: The longest wait for a drain and for the update, each.
        """
        self.newest += 1
        version, source = self.newest, next(self._next)
        canary = await anyio.to_thread.run_sync(self._canary, version) if expected or source == "group" else Canary()
        file = self.fleet.weights / f"{version}.safetensors"
        what = await anyio.to_thread.run_sync(self._source, source, version, file)
        async with self._trainer(what, file):
            await self.job.publish(version, what, mode=mode, canary=canary, timeout_s=timeout_s)  # type: ignore[arg-type]

    def _canary(self, version: int) -> Canary:
        tokens, log_probs = self.fleet.versions.greedy_answer(version, USUAL_PROMPT, CANARY_TOKENS)
        return Canary(USUAL_PROMPT, tokens, log_probs)

    def _source(self, source: str, version: int, file: Path) -> Source:
        versions = self.fleet.versions
        if source == "disk":
            return str(versions.save(version, self.fleet.weights))
        tensors = versions.tensors(version)
        if source == "tensors":
            return Tensors(save(tensors))
        save_file(tensors, file)
        specs = tuple(
            BroadcastTensor(name, str(values.dtype).removeprefix("torch."), tuple(values.shape))
            for name, values in sorted(tensors.items())
        )
        with socket.create_server((LOOPBACK, 0)) as free:
            port = free.getsockname()[1]
        return TransferGroup(LOOPBACK, port, f"version-{version}", 1 + self.fleet.size, specs, backend="gloo")

    @asynccontextmanager
    async def _trainer(self, source: Source, file: Path) -> AsyncIterator[None]:
        """For a group: begins to wait for engines, and ends once all have received, or the trainer has given up."""
        if not isinstance(source, TransferGroup):
            yield
            return
        arguments = [str(source.port), source.group_name, str(source.world_size), str(file)]
        async with await anyio.open_process(
            [sys.executable, "-m", trainer.__name__, *arguments], stdout=None
        ) as process:
            await _until_listening(source)
            yield
            with anyio.move_on_after(BROADCAST_S):
                await process.wait()


async def _until_listening(group: TransferGroup) -> None:
    """A trainer is there before it publishes; the time that its process takes to start is not an update's."""
    with anyio.fail_after(BROADCAST_S):
        while True:
            try:
                stream = await anyio.connect_tcp(group.address, group.port)
            except OSError:
                await anyio.sleep(LISTEN_LOOK_S)
            else:
                await stream.aclose()
                return
