"""A real engine whose weight updates go wrong as a plan says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from enum import Enum, auto
from pathlib import Path

import anyio
from callsheet.managers.inference.driver import (
    EngineCapabilities,
    EngineDriver,
    EngineError,
    EngineFailedError,
    EngineHealth,
    EngineLimits,
    EngineLoad,
    GenerateRequest,
    Generation,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.weights import DiskWeights, UpdateMode
from typing_extensions import override


class Fault(Enum):
    """What goes wrong in the next update."""

    INTACT = auto()
    """It is refused before anything was changed."""
    HALF = auto()
    """It breaks off after other weights than those that were asked for have come in."""
    IGNORED = auto()
    """The engine says that all is well, and takes the version without the weights."""
    MISLABELLED = auto()
    """The engine takes the weights, and names another version."""
    DEAD = auto()
    """The engine dies, and is back with its first weights."""


class FaultyEngine(EngineDriver):
    """Hands everything to a real engine but what it was told to get wrong.

    Attributes:
        faults: What goes wrong in the next updates, one each; None for those that go well.
        begun: Set once a request has come.
        updating: Set once an update has come.
    """

    def __init__(
        self, engine: EngineDriver, first: Path, wrong: Path, kill: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Puts itself before an engine.

        Args:
            engine: The real one.
            first: Weights that it was started with.
            wrong: Weights that nobody publishes.
            kill: Kills the engine's server and starts it again; None where it has none, or that is not ours to kill.
        """
        self.engine = engine
        self.faults: list[Fault | None] = []
        self.begun = anyio.Event()
        self.updating = anyio.Event()
        self._first, self._wrong, self._kill = first, wrong, kill
        self._incarnation = 0
        self._claimed: int | None = None

    @property
    @override
    def capabilities(self) -> EngineCapabilities:
        return self.engine.capabilities

    @property
    @override
    def policy_version(self) -> int:
        return self.engine.policy_version if self._claimed is None else self._claimed

    @property
    @override
    def load(self) -> EngineLoad:
        return self.engine.load

    @property
    @override
    def health(self) -> EngineHealth:
        return self.engine.health

    @property
    @override
    def incarnation(self) -> str:
        return f"{self._incarnation}.{self.engine.incarnation}"

    @property
    @override
    def limits(self) -> EngineLimits:
        return self.engine.limits

    @override
    async def serve(self) -> None:
        await self.engine.serve()

    @override
    async def wait_failed(self) -> str:
        return await self.engine.wait_failed()

    @override
    async def read_policy_version(self) -> int:
        return await self.engine.read_policy_version() if self._claimed is None else self._claimed

    @override
    async def generate(self, request: GenerateRequest) -> Generation:
        self.begun.set()
        return await self.engine.generate(request)

    @override
    async def abort(self, request_id: str) -> None:
        await self.engine.abort(request_id)

    @override
    def on_change(self, report: Callable[[], None]) -> None:
        self.engine.on_change(report)

    @override
    async def update_weights(self, update: WeightUpdate) -> str:
        fault = self.faults.pop(0) if self.faults else None
        self.updating.set()
        match fault:
            case None:
                self._claimed = None
                return await self.engine.update_weights(update)
            case Fault.INTACT:
                raise WeightUpdateError("no such weights", intact=True)
            case Fault.HALF:
                await self.engine.update_weights(replace(update, source=DiskWeights(str(self._wrong))))
                raise WeightUpdateError("the connection broke after some of the tensors")
            case Fault.IGNORED:
                self._claimed = update.version
            case Fault.MISLABELLED:
                await self.engine.update_weights(update)
                self._claimed = update.version + 1
            case Fault.DEAD:
                await self._die(update)
                raise EngineFailedError("the engine died")
        return ""

    async def _die(self, update: WeightUpdate) -> None:
        if self._kill is None:
            await self.restart()
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._try, update)
            await self._kill()

    async def restart(self) -> None:
        """The engine is another one now, with the weights that it was started with."""
        self._incarnation += 1
        self._claimed = None
        first = WeightUpdate(source=DiskWeights(str(self._first)), version=0, mode=UpdateMode.ABORT)
        await self.engine.update_weights(first)

    async def _try(self, update: WeightUpdate) -> None:
        try:
            await self.engine.update_weights(update)
        except EngineError:
            return  # It was to die of it.

    @override
    async def close(self) -> None:
        await self.engine.close()
