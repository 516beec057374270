"""A scheduler of its own, and engines whose updates can be made to fail: embedded ones, or servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup, TaskStatus
from callsheet.benchmarks.weights.faulty_engine import FaultyEngine
from callsheet.benchmarks.weights.servers import EngineServer, running_servers
from callsheet.benchmarks.weights.settings import WeightsBenchSettings
from callsheet.benchmarks.weights.versions import CONFIG, WRONG, DirectoryVersions, EmbeddedVersions, ModelVersions
from callsheet.deploy.processes import ProcessSpec, command_module, run_process
from callsheet.managers.executor import Executor
from callsheet.managers.inference.build import build_inference_executor
from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.engine_kind import ENGINE_KINDS, UnloadedEngine
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.options.declaration import from_texts
from callsheet.v1 import manager_service_pb2

ENGINES: Final = 2
SLOTS: Final = 32
_START_S: Final = 60.0
_LEAVE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class EngineRecipe:
    """How one engine is made.

    Attributes:
        settings: Of its manager.
        engine: The engine, not loaded.
        server: What it drives, where the benchmark has started that itself.
    """

    settings: InferenceSettings
    engine: UnloadedEngine
    server: EngineServer | None = None


@dataclass(eq=False)
class RunningEngine:
    """An engine with its manager.

    Attributes:
        driver: The engine; another one after each start.
    """

    address: str
    name: str
    weights: Path
    recipe: EngineRecipe
    tasks: TaskGroup
    driver: FaultyEngine = field(init=False)
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _left: anyio.Event = field(default_factory=anyio.Event)

    async def start(self) -> None:
        """Starts its manager: with an embedded engine that has its first weights, or once its server is ready."""
        recipe = self.recipe
        engine = replace(recipe.engine, load=partial(self._load, recipe.engine))
        executor = await anyio.to_thread.run_sync(build_inference_executor, recipe.settings, engine)
        node = manager_service_pb2.NodeSpec(
            node_id=f"node-{self.name}", numa_nodes=[manager_service_pb2.NumaNode(cores=[0, 1])]
        )
        manager = ManagerSettings(self.address, self.name, node, handle_signals=False, reconnect_initial_s=0.05)
        self._scope, self._left = anyio.CancelScope(), anyio.Event()
        with anyio.fail_after(_START_S):
            await self.tasks.start(self._run, manager, executor)

    def _load(self, engine: UnloadedEngine) -> EngineDriver:
        server = self.recipe.server
        restart = None if server is None else server.restart
        self.driver = FaultyEngine(engine.load(), self.weights / "0", self.weights / str(WRONG), restart)
        return self.driver

    async def _run(self, manager: ManagerSettings, executor: Executor, *, task_status: TaskStatus[None]) -> None:
        try:
            with self._scope:
                await run_manager(manager, executor, task_status=task_status)
        finally:
            self._left.set()

    async def kill(self) -> None:
        """Ends the manager and its engine at once, whatever they are doing; a server only if it is the benchmark's."""
        self._scope.cancel()
        if self.recipe.server is not None:
            await self.recipe.server.restart()
        with anyio.fail_after(_LEAVE_S):
            await self._left.wait()


@dataclass(frozen=True, slots=True)
class WeightsFleet:
    """A scheduler's address, its engines, and where weights are.

    Attributes:
        engines: Those whose updates can be made to fail; none where each engine is a process of its own.
        size: How many engines there are.
        versions: The model that they serve.
        kept_kv: Whether updates of mode keep leave the KV cache of running requests in place.
        tolerance: By how much a log-probability of such engines may differ from the reference's.
    """

    address: str
    engines: tuple[RunningEngine, ...]
    size: int
    weights: Path
    versions: ModelVersions
    kept_kv: bool
    tolerance: float

    @property
    def newest(self) -> int:
        """The newest version that an engine names: servers may have served others before."""
        return max((engine.driver.policy_version for engine in self.engines), default=0)


@asynccontextmanager
async def running_fleet(directory: Path, settings: WeightsBenchSettings) -> AsyncIterator[WeightsFleet]:
    """Runs a scheduler and its engines for the length of a `with` block.

    Raises:
        ProcessFailedError: The scheduler did not start.
        EngineError: A server is not ready in time.
        ValueError: The engine's options, or the model's directory, cannot be used.
    """
    weights = directory / "weights"
    versions = DirectoryVersions(settings.model) if settings.model is not None else EmbeddedVersions()
    for version in (0, WRONG):
        versions.save(version, weights)
    arguments = ["scheduler", "--data-dir", str(directory / "data"), "--listen", "127.0.0.1:0", "--log-level"]
    spec = ProcessSpec("scheduler", command_module(), [*arguments, "warning"], log_path=directory / "scheduler.log")
    async with (
        _recipes(directory, settings, weights / "0") as recipes,
        run_process(spec) as scheduler,
        anyio.create_task_group() as tasks,
        AsyncExitStack() as processes,
    ):
        address = scheduler.facts["address"]
        apart = settings.engines_apart
        for index in range(len(recipes) if apart else 0):
            await processes.enter_async_context(run_process(_manager_process(address, index, directory)))
        engines = tuple(
            RunningEngine(address, f"engine-{index}", weights, recipe, tasks)
            for index, recipe in enumerate(() if apart else recipes)
        )
        for engine in engines:
            await engine.start()
        abilities = [engine.driver.capabilities for engine in engines] or [each.engine.abilities for each in recipes]
        tolerance = max(each.log_prob_tolerance for each in abilities)
        yield WeightsFleet(address, engines, len(recipes), weights, versions, kept_kv(settings), tolerance)
        tasks.cancel_scope.cancel()


def _manager_process(address: str, index: int, directory: Path) -> ProcessSpec:
    """An embedded engine in a process of its own, as outside of benchmarks: a process joins a transfer group once."""
    arguments = ["manager", "inference", "--scheduler", address, "--manager-id", f"engine-{index}"]
    arguments += ["--node-id", f"node-{index}", "--cpus", "2", "--weights", str(directory / "weights" / "0")]
    arguments += ["--slots", str(SLOTS), "--kv-cache-tokens", str(SLOTS * CONFIG.context_length)]
    arguments += ["--log-level", "warning"]
    return ProcessSpec(f"engine-{index}", command_module(), arguments, log_path=directory / f"engine-{index}.log")


@asynccontextmanager
async def _recipes(
    directory: Path, settings: WeightsBenchSettings, first: Path
) -> AsyncIterator[tuple[EngineRecipe, ...]]:
    if settings.model is None:
        yield (_embedded(first),) * ENGINES
    elif settings.server is None:
        yield tuple(_attached(settings, url) for url in settings.urls)
    else:
        async with running_servers(settings.server, ENGINES, directory) as servers:
            yield tuple(replace(_attached(settings, server.url), server=server) for server in servers)


def _embedded(first: Path) -> EngineRecipe:
    settings = InferenceSettings(kv_cache_tokens=SLOTS * CONFIG.context_length, slots=SLOTS, weights=first)
    return EngineRecipe(settings, torch_engine(TorchSettings(shape=CONFIG), settings))


def _attached(settings: WeightsBenchSettings, url: str) -> EngineRecipe:
    inference = InferenceSettings(engine=settings.engine, engine_options=settings.engine_options, urls=(url,))
    kind = ENGINE_KINDS.get(settings.engine)
    return EngineRecipe(inference, kind.build(from_texts(kind.settings, settings.engine_options), inference))


def kept_kv(settings: WeightsBenchSettings) -> bool:
    """Whether updates of mode keep leave the KV cache of running requests in place."""
    own = from_texts(ENGINE_KINDS.get(settings.engine).settings, settings.engine_options)
    return bool(getattr(own, "keep_kv", True))
