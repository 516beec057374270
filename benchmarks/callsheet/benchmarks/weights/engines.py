"""A scheduler of its own, and engines in this process whose updates can be made to fail."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import TaskGroup, TaskStatus
from callsheet.benchmarks.weights.faulty_engine import FaultyEngine
from callsheet.benchmarks.weights.models import CONFIG, WRONG, save_version
from callsheet.deploy.processes import ProcessSpec, command_module, run_process
from callsheet.managers.executor import Executor
from callsheet.managers.inference.build import build_inference_executor
from callsheet.managers.inference.engine_kind import UnloadedEngine
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.v1 import manager_service_pb2

ENGINES: Final = 2
SLOTS: Final = 32
_START_S: Final = 60.0
_LEAVE_S: Final = 30.0


@dataclass(eq=False)
class RunningEngine:
    """An engine with its manager.

    Attributes:
        driver: The engine; another one after each start.
    """

    address: str
    name: str
    weights: Path
    tasks: TaskGroup
    driver: FaultyEngine = field(init=False)
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _left: anyio.Event = field(default_factory=anyio.Event)

    async def start(self) -> None:
        """Starts its manager with an engine that has its first weights."""
        settings = InferenceSettings(
            kv_cache_tokens=SLOTS * CONFIG.context_length, slots=SLOTS, weights=self.weights / "0"
        )
        real = torch_engine(TorchSettings(shape=CONFIG), settings)
        self.driver = FaultyEngine(real.load(), self.weights / "0", self.weights / str(WRONG))
        driver = self.driver
        executor = build_inference_executor(settings, UnloadedEngine(real.abilities, real.capabilities, lambda: driver))
        node = manager_service_pb2.NodeSpec(
            node_id=f"node-{self.name}", numa_nodes=[manager_service_pb2.NumaNode(cores=[0, 1])]
        )
        manager = ManagerSettings(self.address, self.name, node, handle_signals=False, reconnect_initial_s=0.05)
        self._scope, self._left = anyio.CancelScope(), anyio.Event()
        with anyio.fail_after(_START_S):
            await self.tasks.start(self._run, manager, executor)

    async def _run(self, manager: ManagerSettings, executor: Executor, *, task_status: TaskStatus[None]) -> None:
        try:
            with self._scope:
                await run_manager(manager, executor, task_status=task_status)
        finally:
            self._left.set()

    async def kill(self) -> None:
        """Ends the manager and its engine at once, whatever they are doing."""
        self._scope.cancel()
        with anyio.fail_after(_LEAVE_S):
            await self._left.wait()


@dataclass(frozen=True, slots=True)
class WeightsFleet:
    """A scheduler's address, its engines, and where weights are."""

    address: str
    engines: tuple[RunningEngine, ...]
    weights: Path


@asynccontextmanager
async def running_fleet(directory: Path) -> AsyncIterator[WeightsFleet]:
    """Runs a scheduler and two engines for the length of a `with` block."""
    weights = directory / "weights"
    for version in (0, WRONG):
        save_version(version, weights)
    arguments = ["scheduler", "--data-dir", str(directory / "data"), "--listen", "127.0.0.1:0", "--log-level"]
    spec = ProcessSpec("scheduler", command_module(), [*arguments, "warning"], log_path=directory / "scheduler.log")
    async with run_process(spec) as scheduler, anyio.create_task_group() as tasks:
        address = scheduler.facts["address"]
        engines = tuple(RunningEngine(address, f"engine-{index}", weights, tasks) for index in range(ENGINES))
        for engine in engines:
            await engine.start()
        yield WeightsFleet(address, engines, weights)
        tasks.cancel_scope.cancel()
