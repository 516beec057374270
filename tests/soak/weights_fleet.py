"""Engines whose weights change under load: embedded ones in this process or in their own, or real servers."""

from __future__ import annotations

import itertools
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import torch
from anyio.abc import Process, TaskGroup, TaskStatus
from callsheet.client import BroadcastTensor, Canary, Client, Job, RolloutStatus, Tensors, TransferGroup
from callsheet.client.words.weights import Source, UpdateModeName
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.executor import Executor
from callsheet.managers.inference.build import build_inference_executor
from callsheet.managers.inference.driver import EngineDriver
from callsheet.managers.inference.engine_kind import ENGINE_KINDS, UnloadedEngine
from callsheet.managers.inference.proof import CANARY_TOKENS, USUAL_PROMPT
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.runtime import run_manager
from callsheet.managers.settings import ManagerSettings
from callsheet.managers.supervision.processes import ProcessSpec, command_module, run_process
from callsheet.options.declaration import from_texts
from callsheet.v1 import manager_service_pb2
from safetensors.torch import save, save_file
from torch import Tensor

from tests.support import broadcasting_trainer
from tests.support.faulty_engine import FaultyEngine
from tests.support.ports import free_port
from tests.support.real_engines import conformance_model
from tests.support.torch_models import save_weights, small_model

ENGINES: Final = 2
SLOTS: Final = 32
CONFIG: Final = TransformerConfig(context_length=2048, layers=2, width=64, heads=2, hidden_width=96)
WRONG: Final = 999_983
"""Stands for weights that nobody publishes."""
SERVER_ENGINE: Final = os.environ.get("CALLSHEET_WEIGHTS_ENGINE", "")
"""The driver of real servers, where the suite is to run against these."""
SERVER_COMMAND: Final = os.environ.get("CALLSHEET_WEIGHTS_SERVER", "")
"""The command line of one, which serves `conformance_model` of seed 0; {port} stands for its port."""
UPDATED_S: Final = 600.0
"""A server that was killed takes minutes to start on a busy machine."""
_LOOPBACK: Final = "127.0.0.1"
_START_S: Final = 60.0
_END_S: Final = 30.0
_LISTEN_LOOK_S: Final = 0.1


class Versions:
    """The model that engines serve, with no cache, batch or engine around it. A version is the seed of its weights."""

    def __init__(self, make: Callable[[int], Any], save_in: Callable[[int, Path], object]) -> None:
        """Takes how a version's model is made, and how its weights are written as engines read them."""
        self.model = lru_cache(maxsize=32)(make)
        self.save_in = save_in

    @torch.no_grad()
    def table(self, version: int, tokens: Sequence[int]) -> Tensor:
        """Returns log-probabilities behind each place of a sequence, (tokens, vocabulary)."""
        answer = self.model(version)(torch.tensor([list(tokens)]))
        return torch.log_softmax(getattr(answer, "logits", answer)[0].double(), dim=-1)

    def canary(self, version: int) -> Canary:
        """Returns a trainer's own greedy answer to the usual prompt."""
        known, log_probs = list(USUAL_PROMPT), []
        for _ in range(CANARY_TOKENS):
            last = self.table(version, known)[-1]
            known.append(int(last.argmax()))
            log_probs.append(float(last.max()))
        return Canary(USUAL_PROMPT, known[len(USUAL_PROMPT) :], log_probs)


class EngineServer:
    """A real server at a port that stays the same over its starts."""

    def __init__(self, command: str, log_path: Path) -> None:
        """Starts nothing yet."""
        port = free_port()
        self.url = f"http://{_LOOPBACK}:{port}"
        self._arguments = shlex.split(command.replace("{port}", str(port)))
        self._log_path = log_path
        self._process: Process | None = None

    async def restart(self) -> None:
        """Kills it, if it runs, and starts another one in its place; returns at once."""
        await self.kill()
        with self._log_path.open("ab") as log:
            self._process = await anyio.open_process(
                self._arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    async def kill(self) -> None:
        """Ends it and all its processes."""
        process, self._process = self._process, None
        if process is None:
            return
        with anyio.move_on_after(_END_S, shield=True):
            with suppress(ProcessLookupError):  # it may have ended by itself
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            await process.aclose()


@dataclass(eq=False)
class RunningEngine:
    """An engine whose updates can be made to fail, with its manager in this process.

    Attributes:
        driver: The engine; another one after each start.
    """

    address: str
    name: str
    weights: Path
    settings: InferenceSettings
    engine: UnloadedEngine
    tasks: TaskGroup
    server: EngineServer | None = None
    driver: FaultyEngine = field(init=False)
    _scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    _left: anyio.Event = field(default_factory=anyio.Event)

    async def start(self) -> None:
        """Starts its manager: with an embedded engine that has its first weights, or once its server is ready."""
        engine = replace(self.engine, load=self._load)
        executor = await anyio.to_thread.run_sync(build_inference_executor, self.settings, engine)
        node = manager_service_pb2.NodeSpec(
            node_id=f"node-{self.name}", numa_nodes=[manager_service_pb2.NumaNode(cores=[0, 1])]
        )
        manager = ManagerSettings(self.address, self.name, node, handle_signals=False, reconnect_initial_s=0.05)
        self._scope, self._left = anyio.CancelScope(), anyio.Event()
        with anyio.fail_after(_START_S):
            await self.tasks.start(self._run, manager, executor)

    def _load(self) -> EngineDriver:
        restart = None if self.server is None else self.server.restart
        self.driver = FaultyEngine(self.engine.load(), self.weights / "0", self.weights / str(WRONG), restart)
        return self.driver

    async def _run(self, manager: ManagerSettings, executor: Executor, *, task_status: TaskStatus[None]) -> None:
        try:
            with self._scope:
                await run_manager(manager, executor, task_status=task_status)
        finally:
            self._left.set()

    async def kill_and_start(self) -> None:
        """Ends the manager and its engine at once, whatever they are doing, and starts others."""
        self._scope.cancel()
        if self.server is not None:
            await self.server.restart()
        with anyio.fail_after(_END_S):
            await self._left.wait()
        await self.start()


@dataclass(eq=False)
class WeightsFleet:
    """Engines under a scheduler, and the trainer that publishes their weights.

    Attributes:
        address: The scheduler's.
        job: The trainer's.
        directory: Where weights lie, by version.
        sources: Where versions come from, in turn: "disk", "tensors" or "group".
        engines: Those whose updates can be made to fail; none where they are processes of their own.
        kept_kv: Whether updates of mode keep leave the KV cache of running requests in place. What follows a switch is
            then marked as of the newer version, and no pass over the whole sequence gives the same.
        newest: The newest version that was published.
        begun: Versions under which a slot of the load began something, by the slot.
    """

    address: str
    job: Job
    directory: Path
    versions: Versions
    sources: Iterator[str]
    engines: tuple[RunningEngine, ...]
    kept_kv: bool = True
    newest: int = 0
    begun: dict[int, set[int | None]] = field(default_factory=dict)

    async def publish(self, mode: UpdateModeName, source: str = "", *, expected: bool = False) -> None:
        """Publishes the next version.

        Args:
            mode: Of the update.
            source: Where it comes from; the next of `sources` unless given.
            expected: Whether the trainer's own answer to the canary goes with it. A group cannot do without.
        """
        version, source = self.newest + 1, source or next(self.sources)
        answers = expected or source == "group"
        canary = await anyio.to_thread.run_sync(self.versions.canary, version) if answers else Canary()
        what, file = await anyio.to_thread.run_sync(self._source, source, version)
        self.newest = version
        async with self._trainer(what, file):
            await self.job.publish(version, what, mode=mode, canary=canary, wait_s=0)

    async def updated(self) -> RolloutStatus:
        """Returns how far the newest version is, once all engines have proved it or have not in time."""
        return await self.job.rollout(wait_s=UPDATED_S)

    def _source(self, source: str, version: int) -> tuple[Source, Path]:
        place = self.directory / str(version)
        if source == "disk":
            self.versions.save_in(version, place)
            return str(place), place
        tensors = {name: values.contiguous() for name, values in self.versions.model(version).state_dict().items()}
        if source == "tensors":
            return Tensors(save(tensors)), place
        save_file(tensors, place)
        specs = tuple(
            BroadcastTensor(name, str(values.dtype).removeprefix("torch."), tuple(values.shape))
            for name, values in sorted(tensors.items())
        )
        return TransferGroup(_LOOPBACK, free_port(), f"version-{version}", 1 + ENGINES, specs, backend="gloo"), place

    @asynccontextmanager
    async def _trainer(self, source: Source, file: Path) -> AsyncIterator[None]:
        """For a group: a process waits for engines, and ends once all have received or it has given up."""
        if not isinstance(source, TransferGroup):
            yield
            return
        command = [sys.executable, "-m", broadcasting_trainer.__name__, str(source.port), source.group_name]
        command += [str(source.world_size), str(file)]
        with anyio.fail_after(UPDATED_S):
            async with await anyio.open_process(command, stdout=None) as process:
                await _until_listening(source)
                yield
                await process.wait()


async def _until_listening(group: TransferGroup) -> None:
    """A trainer is there before it publishes; the time that its process takes to start is not an update's."""
    while True:
        try:
            stream = await anyio.connect_tcp(group.address, group.port)
        except OSError:
            await anyio.sleep(_LISTEN_LOOK_S)
        else:
            await stream.aclose()
            return


@asynccontextmanager
async def embedded_fleet(
    directory: Path, *, apart: bool = False, engines: int = ENGINES
) -> AsyncIterator[WeightsFleet]:
    """Runs a scheduler and embedded engines.

    Args:
        directory: For all files.
        apart: Whether each engine is a process of its own. A process joins a transfer group once.
        engines: How many there are.
    """
    versions = Versions(
        partial(small_model, config=CONFIG), lambda seed, place: save_weights(small_model(seed, CONFIG), CONFIG, place)
    )
    first = _save_first(directory, versions) / "0"
    settings = InferenceSettings(kv_cache_tokens=SLOTS * CONFIG.context_length, slots=SLOTS, weights=first)
    engine = torch_engine(TorchSettings(shape=CONFIG), settings)
    sources = ("tensors", "group", "disk") if apart else ("disk", "tensors")
    here = [] if apart else [(settings, engine, None)] * engines
    async with _fleet(directory, versions, sources, here) as fleet, AsyncExitStack() as processes:
        for index in range(engines if apart else 0):
            spec = _manager_process(fleet.address, f"engine-{index}", first, directory)
            await processes.enter_async_context(run_process(spec))
        yield fleet


def _manager_process(address: str, name: str, first: Path, directory: Path) -> ProcessSpec:
    arguments = ["manager", "inference", "--scheduler", address, "--manager-id", name, "--node-id", f"node-{name}"]
    arguments += ["--cpus", "2", "--weights", str(first), "--slots", str(SLOTS), "--log-level", "warning"]
    arguments += ["--kv-cache-tokens", str(SLOTS * CONFIG.context_length)]
    return ProcessSpec(name, command_module(), arguments, log_path=directory / f"{name}.log")


@asynccontextmanager
async def server_fleet(directory: Path) -> AsyncIterator[WeightsFleet]:
    """Runs a scheduler before two real servers, which start with the weights of seed 0."""
    from tests.support.hf_models import seeded_model

    versions = Versions(partial(seeded_model, "qwen2"), lambda seed, place: conformance_model(place, seed))
    _save_first(directory, versions)
    kind = ENGINE_KINDS.get(SERVER_ENGINE)
    own = from_texts(kind.settings, ())
    async with AsyncExitStack() as servers:
        engines = []
        for index in range(ENGINES):
            server = EngineServer(SERVER_COMMAND, directory / f"server-{index}.log")
            servers.push_async_callback(server.kill)
            await server.restart()
            settings = InferenceSettings(engine=SERVER_ENGINE, urls=(server.url,))
            engines.append((settings, kind.build(own, settings), server))
        async with _fleet(directory, versions, ("disk", "group"), engines) as fleet:
            fleet.kept_kv = bool(getattr(own, "keep_kv", True))
            yield fleet


def _save_first(directory: Path, versions: Versions) -> Path:
    """Writes the weights that engines start with, and wrong ones; returns where weights lie."""
    weights = directory / "weights"
    for version in (0, WRONG):
        versions.save_in(version, weights / str(version))
    return weights


@asynccontextmanager
async def _fleet(
    directory: Path,
    versions: Versions,
    sources: Sequence[str],
    engines: Sequence[tuple[InferenceSettings, UnloadedEngine, EngineServer | None]],
) -> AsyncIterator[WeightsFleet]:
    weights = directory / "weights"
    async with (
        local_stack(StackSettings(directory / "data", managers=())) as stack,
        Client(stack.address) as client,
        anyio.create_task_group() as tasks,
        await client.open_job("weights") as job,
    ):
        running = tuple(
            RunningEngine(stack.address, f"engine-{index}", weights, settings, engine, tasks, server)
            for index, (settings, engine, server) in enumerate(engines)
        )
        for engine in running:
            await engine.start()
        yield WeightsFleet(stack.address, job, weights, versions, itertools.cycle(sources), running)
        tasks.cancel_scope.cancel()
