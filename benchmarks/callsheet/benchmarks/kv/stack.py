"""The engine that is measured, and Callsheet's stack before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread
import psutil
from callsheet.benchmarks.kv.settings import EMBEDDED_KV_TOKENS, KvBenchSettings
from callsheet.benchmarks.kv.tools import WaitingTools
from callsheet.benchmarks.kv.ways import CallsheetWay
from callsheet.benchmarks.weights.servers import running_servers
from callsheet.client import Client
from callsheet.deploy.processes import ProcessSpec, command_module, run_process
from callsheet.managers.executor import Executor
from callsheet.managers.inference.build import build_inference_executor
from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.engine_kind import ENGINE_KINDS, UnloadedEngine, with_defaults
from callsheet.managers.inference.executor import InferenceExecutor
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.options.declaration import from_texts
from callsheet.v1 import manager_service_pb2
from typing_extensions import override

_EMBEDDED: Final = TransformerConfig(context_length=4096, layers=2, width=64, heads=2, hidden_width=96)
_START_S: Final = 60.0
_CLOSE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class MeasuredEngine:
    """An engine, not loaded, and what its manager is told.

    Attributes:
        settings: Of its manager.
        engine: The engine.
        pid: Of its server, where that is the benchmark's own.
    """

    settings: InferenceSettings
    engine: UnloadedEngine
    pid: int | None = None

    def cpu_s(self) -> float:
        """CPU seconds that its server has used; 0 where that is not known."""
        if self.pid is None:
            return 0.0
        first = psutil.Process(self.pid)
        times = [each.cpu_times() for each in (first, *first.children(recursive=True))]
        return sum(each.user + each.system for each in times)


@asynccontextmanager
async def measured_engine(settings: KvBenchSettings, directory: Path) -> AsyncIterator[MeasuredEngine]:
    """The engine that the settings name; a server of the benchmark's own ends with the `with` block.

    Raises:
        OSError: There is no such program.
        ValueError: The engine's options cannot be used.
    """
    if settings.server is not None:
        async with running_servers(settings.server, 1, directory) as (server,):
            yield replace(_attached(settings, server.url), pid=server.pid)
    elif settings.urls:
        yield _attached(settings, settings.urls[0])
    else:
        inference = InferenceSettings(kv_cache_tokens=EMBEDDED_KV_TOKENS)
        torch = TorchSettings(shape=_EMBEDDED, prefix_cache_tokens=EMBEDDED_KV_TOKENS)
        yield MeasuredEngine(inference, torch_engine(torch, inference))


def _attached(settings: KvBenchSettings, url: str) -> MeasuredEngine:
    inference = InferenceSettings(engine=settings.engine, engine_options=settings.engine_options, urls=(url,))
    kind = ENGINE_KINDS.get(settings.engine)
    return MeasuredEngine(inference, kind.build(from_texts(kind.settings, settings.engine_options), inference))


@asynccontextmanager
async def loaded_driver(measured: MeasuredEngine) -> AsyncIterator[EngineDriver]:
    """Loads the engine, or waits for its server, for the length of a `with` block.

    Raises:
        EngineError: The server is not ready in time.
    """
    driver = with_defaults(await anyio.to_thread.run_sync(measured.engine.load))
    try:
        yield driver
    finally:
        with anyio.move_on_after(_CLOSE_S, shield=True):
            await driver.close()


class _SilentOfKv(InferenceExecutor):
    """Does not tell what the engine's KV cache holds, so that there is no KV admission."""

    @override
    def services(self) -> Sequence[manager_service_pb2.HostedService]:
        services = super().services()
        for service in services:
            service.kv_tokens = 0
        return services


@asynccontextmanager
async def through_callsheet(
    measured: MeasuredEngine, directory: Path, *, admission: bool = True
) -> AsyncIterator[CallsheetWay]:
    """Runs a scheduler and managers before the engine, which know nothing of it yet.

    Args:
        measured: The engine.
        directory: For the scheduler's files.
        admission: Whether there is KV admission.

    Raises:
        ProcessFailedError: The scheduler did not start.
        EngineError: The server is not ready in time.
    """
    arguments = ["scheduler", "--data-dir", str(directory / "data"), "--listen", "127.0.0.1:0", "--log-level"]
    spec = ProcessSpec("scheduler", command_module(), [*arguments, "warning"], log_path=directory / "scheduler.log")
    async with run_process(spec) as scheduler, anyio.create_task_group() as tasks:
        address = scheduler.facts["address"]
        inference = await anyio.to_thread.run_sync(build_inference_executor, measured.settings, measured.engine)
        if not admission:
            inference = _SilentOfKv(inference.engine, measured.engine, measured.settings)
        executors: dict[str, Executor] = {"engine": inference, "tools": WaitingTools()}
        for name, executor in executors.items():
            node = manager_service_pb2.NodeSpec(
                node_id=f"node-{name}", numa_nodes=[manager_service_pb2.NumaNode(cores=[0, 1])]
            )
            manager = ManagerSettings(address, name, node, handle_signals=False)
            with anyio.fail_after(_START_S):
                await tasks.start(run_manager, manager, executor)
        async with Client(address) as client, await client.open_job("bench") as job:
            yield CallsheetWay(job)
        tasks.cancel_scope.cancel()
