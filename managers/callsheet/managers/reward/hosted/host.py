"""Serves requests to many models: whose turn it is, who comes and who gives way, in workers that may die.

All decisions are made by `turns` and `residency`, which are pure; here are the clock, the tasks and the processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import Any

import anyio
import structlog
from anyio.abc import TaskGroup
from callsheet.managers.reward.hosted.expectations import room_before_restore
from callsheet.managers.reward.hosted.model_spec import ModelTask
from callsheet.managers.reward.hosted.places import PlaceChoice
from callsheet.managers.reward.hosted.residency import ModelStage, Residency
from callsheet.managers.reward.hosted.roster import (
    SERVER_TOLERANCE,
    TOLERANCE,
    HostedModel,
    HostedWorker,
    WorkerSlot,
    memory_file_of,
    same_canary,
    slots_of,
)
from callsheet.managers.reward.hosted.servers.worker import server_worker
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.reward.hosted.tickets import (
    AnswerTrouble,
    ModelLines,
    ModelRequest,
    NoAnswer,
    answer_of,
    refused,
)
from callsheet.managers.reward.hosted.turns import ModelRestore, PatientTurns
from callsheet.managers.reward.hosted.worker import WorkerDiedError, WorkerProcess, WorkerRefusedError
from callsheet.timing.backoff import backoff_s

log = structlog.get_logger(__name__)

# Decisions depend on time as well: who waits is looked at again after so long, and so is who idles.
_LOOK_AGAIN_S = 0.05
_LOOK_FOR_IDLE_S = 1.0
_FIRST_BLOCK_S = 1.0
_MOST_DEATHS = 3
_LONGEST_BLOCK_S = 60.0


class ModelHost:
    """See the module's docstring. Must be used from one event loop, with `serve` running."""

    def __init__(self, settings: HostedSettings, residency: Residency, parked_directory: Path) -> None:
        """Starts with all models cold.

        Args:
            settings: How it works.
            residency: The models' sizes and the devices.
            parked_directory: For copies of weights that cannot be read as they are; removed by nobody.
        """
        self.residency = residency
        self.models = {spec.name: HostedModel(spec, f"{index:03d}") for index, spec in enumerate(settings.all_models)}
        self.workers = slots_of(self.models.values())
        self._slot_of = {model: slot for slot in self.workers.values() for model in slot.models}
        self._settings = settings
        self._turns = PatientTurns(prewarm=settings.prewarm)
        self.parked_directory = parked_directory
        self._lines = ModelLines(self.models)
        self._first = [name for name, each in self.models.items() if each.spec.pinned or each.spec.prewarm]
        self._restoring = False
        # Memory of servers changes hands one after another.
        self._server_memory = anyio.Lock()
        self._asked = 0
        self._tasks: TaskGroup | None = None
        self._wake = anyio.Event()
        self._changed: Callable[[], None] = lambda: None

    def has_worker(self, model: str) -> bool:
        """Returns whether the model's worker answers, or is being started for the first time."""
        slot = self._slot_of[model]
        return slot.process is not None or not slot.deaths

    def room(self, model: str) -> int:
        """Returns the requests to give the model before a restore elsewhere is worth it; see `room_before_restore`."""
        pace = self.residency.tenants[model].pace
        return room_before_restore(self._settings.max_batch, self.residency.restore_s(model), pace.per_s)

    def on_change(self, report: Callable[[], None]) -> None:
        """Takes the function to call when a model's state is another than before."""
        self._changed = report

    def ask(self, model: str, question: Mapping[str, Any]) -> ModelRequest:
        """Puts a request into its model's line.

        Args:
            model: One of the models.
            question: As `questions` has it.
        """
        now = monotonic()
        self._asked += 1
        ticket = ModelRequest(model, dict(question), self._asked, now)
        hosted = self.models[model]
        if hosted.problem is not None and now < hosted.blocked_until:
            ticket.settle(hosted.problem, now)
            return ticket
        self.residency.request(model, now)
        self._lines.add(ticket)
        self._pump()
        return ticket

    def withdraw(self, ticket: ModelRequest) -> None:
        """Ends a request without an answer; a batch that has begun goes on without it."""
        self._lines.remove(ticket)
        ticket.settle(None, monotonic())

    def park(self, model: str) -> None:
        """Has an idle resident model give its memory back.

        Raises:
            ValueError: It runs.
        """
        self.residency.leave(model)
        self._start(self._evict, model)

    async def serve(self) -> None:
        """Runs the workers, and all batches and restores, until it is cancelled."""
        with memory_file_of(self._settings) as memory_file:
            async with anyio.create_task_group() as tasks:
                self._tasks = tasks
                for name, slot in self.workers.items():
                    tasks.start_soon(self._keep, name, slot, memory_file)
                await self._look_again()

    async def _keep(self, name: str, slot: WorkerSlot, memory_file: int | None) -> None:
        """Runs a worker, again and again."""
        while True:
            process = self._new_worker(name, slot, memory_file)
            ready = anyio.Event()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._admit, slot, process, ready)
                code = await process.serve(ready)
                tasks.cancel_scope.cancel()
            slot.process = None
            slot.deaths += 1
            for model in slot.models:
                self.residency.lose(model)
                self.models[model].opened_by = None
            self._changed()
            wait_s = backoff_s(slot.deaths, self._settings.restart_s, self._settings.restart_most_s)
            log.error("reward worker died", worker=name, code=code, models=len(slot.models), again_in_s=wait_s)
            if slot.deaths >= _MOST_DEATHS:
                self._fail_all(slot, f"worker {name} died {slot.deaths} times in a row")
            await anyio.sleep(wait_s)

    def _new_worker(self, name: str, slot: WorkerSlot, memory_file: int | None) -> HostedWorker:
        spec = self.models[slot.models[0]].spec
        if spec.url:
            return server_worker(spec, self._settings, self._server_memory)
        return WorkerProcess(name, self._hello(memory_file), () if memory_file is None else (memory_file,))

    def _fail_all(self, slot: WorkerSlot, message: str) -> None:
        """Those who wait for a worker that cannot live learn it."""
        problem, now = NoAnswer(AnswerTrouble.MODEL, "reward_worker_died", message), monotonic()
        for model in slot.models:
            for request in self._lines.take(model, len(self._lines)):
                request.settle(problem, now)

    async def _admit(self, slot: WorkerSlot, process: HostedWorker, ready: anyio.Event) -> None:
        await ready.wait()
        slot.process = process
        self._first += [name for name in slot.models if self.models[name].spec.pinned and name not in self._first]
        self._changed()
        self._pump()

    def _hello(self, memory_file: int | None) -> dict[str, Any]:
        settings = self._settings
        return {
            "devices": settings.devices,
            "budget_bytes": settings.budget_bytes,
            "memory_file": memory_file,
            "threads": settings.model_threads,
            "scratch_bytes": None if settings.scratch_mib is None else settings.scratch_mib << 20,
            "parked_directory": str(self.parked_directory),
        }

    async def _look_again(self) -> None:
        while True:
            self._wake = anyio.Event()
            with anyio.move_on_after(_LOOK_AGAIN_S if len(self._lines) else _LOOK_FOR_IDLE_S):
                await self._wake.wait()
            self._pump()
            self._let_idle_go()

    def _pump(self) -> None:
        """Starts what can start now."""
        if self._tasks is None:
            return
        now = monotonic()
        for slot in self.workers.values():
            if (process := slot.alive) is not None and not slot.busy:
                model = self._turns.next_batch(self._lines.waiting(slot.models), self.residency, now)
                if model is not None:
                    self._begin_batch(slot, process, model, now)
        if not self._restoring and (restore := self._next_restore(now)) is not None:
            self._restoring = True
            self.residency.begin(restore.model, restore.choice)
            self._tasks.start_soon(self._bring_in, restore.model, restore.choice)

    def _next_restore(self, now: float) -> ModelRestore | None:
        alive = [name for slot in self.workers.values() if slot.alive is not None for name in slot.models]
        usable = [name for name in alive if self.models[name].blocked_until <= now]
        for name in [name for name in self._first if name in usable]:
            self._first.remove(name)
            tenant = self.residency.tenants[name]
            choice = self.residency.choose(name, now) if tenant.place is None else None
            if choice is not None:
                return ModelRestore(name, choice)
        decided = self._turns.next_restore(self._lines.waiting(usable), self.residency, now)
        return decided if decided is not None and decided.model in usable else None

    def _begin_batch(self, slot: WorkerSlot, process: HostedWorker, model: str, now: float) -> None:
        assert self._tasks is not None
        # A judge in a worker answers one after another; others would wait for all of them.
        spec = self.models[model].spec
        judges = spec.kind is ModelTask.JUDGE and not spec.url
        tickets = self._lines.take(model, 1 if judges else self._settings.max_batch)
        slot.busy = True
        self.residency.run(model, now)
        for ticket in tickets:
            ticket.began_at = now
        self._tasks.start_soon(self._batch, slot, process, model, tickets)

    async def _batch(self, slot: WorkerSlot, process: HostedWorker, model: str, tickets: list[ModelRequest]) -> None:
        hosted = self.models[model]
        try:
            answer = await process.ask(
                "answer",
                self._settings.answer_timeout_s,
                model=model,
                questions=[ticket.question for ticket in tickets],
                max_batch_tokens=self._settings.max_batch_tokens,
            )
        except WorkerDiedError as error:
            problem = NoAnswer(AnswerTrouble.MODEL, "reward_worker_died", str(error))
            hosted.failures += 1
            if hosted.failures > 1:
                # Not for the first time: it may well be the model that ends its worker.
                self._block(hosted, problem)
            outcomes: list[Any] = [problem] * len(tickets)
        except WorkerRefusedError as error:
            log.error("reward batch failed", model=model, requests=len(tickets), detail=str(error))
            outcomes = [refused(error)] * len(tickets)
        else:
            hosted.failures = slot.deaths = 0
            outcomes = [answer_of(found) for found in answer["answers"]]
            for ticket, found in zip(tickets, answer["answers"], strict=True):
                ticket.cpu_s, ticket.tokens = answer["cpu_s"] / len(tickets), found.get("tokens", {})
            self.residency.tenants[model].pace.learn(len(tickets), monotonic() - (tickets[0].began_at or 0.0))
        finally:
            slot.busy = False
            now = monotonic()
            self.residency.end(model, now)
        for ticket, outcome in zip(tickets, outcomes, strict=True):
            ticket.share_s = (now - (ticket.began_at or now)) / len(tickets)
            ticket.settle(outcome, now)
        self._changed()
        self._pump()

    async def _bring_in(self, model: str, choice: PlaceChoice) -> None:
        hosted, slot = self.models[model], self._slot_of[model]
        began, seconds = monotonic(), 0.0
        problem: NoAnswer | None = None
        try:
            for evicted in choice.evicted:
                if self.models[evicted].spec.url:
                    # Its memory is in use until it sleeps.
                    await self._quietly(self._evict, evicted)
                else:
                    # An idle model reads nothing, and its worker hears of this before anything later.
                    self._start(self._evict, evicted)
            process = slot.alive
            if process is None:
                raise WorkerDiedError("the worker is not there")
            problem, seconds = await self._come(process, hosted, choice)
        except WorkerDiedError as error:
            problem = NoAnswer(AnswerTrouble.MODEL, "reward_worker_died", str(error))
        finally:
            self._restoring = False
        now = monotonic()
        if problem is None:
            self.residency.arrive(model, now, seconds)
            self._lines.note_restore(model, began, now)
        else:
            self._fail(model, problem, now)
        self._changed()
        self._pump()

    async def _come(
        self, process: HostedWorker, hosted: HostedModel, choice: PlaceChoice
    ) -> tuple[NoAnswer | None, float]:
        """Restores a model and hears its canary; a strange one is restored once more, from its source.

        Returns:
            What went wrong, if anything, and the seconds of the restore.
        """
        tolerance = SERVER_TOLERANCE if hosted.spec.url else TOLERANCE
        try:
            for fresh in (False, True):
                if fresh or hosted.opened_by is not process:
                    await self._open(process, hosted, fresh)
                restored = await process.ask(
                    "restore",
                    self._settings.load_timeout_s,
                    model=hosted.spec.name,
                    device=choice.place.device,
                    offset=choice.place.offset,
                )
                if same_canary(hosted.canary, restored["canary"], tolerance):
                    hosted.canary = restored["canary"]
                    return None, restored["seconds"]
                log.error("reward model answers garbage", model=hosted.spec.name, from_source=fresh)
        except WorkerRefusedError as error:
            return refused(error, "reward_model_unavailable"), 0.0
        message = "its answer to a fixed input is not what it was at first"
        return NoAnswer(AnswerTrouble.MODEL, "reward_model_garbage", message), 0.0

    async def _open(self, process: HostedWorker, hosted: HostedModel, fresh: bool) -> None:
        model = asdict(hosted.spec) | {"directory": str(hosted.spec.directory), "kind": hosted.spec.kind.value}
        del model["engine"]
        opened = await process.ask(
            "open", self._settings.load_timeout_s, model=model, parked_name=hosted.parked_name, fresh=fresh
        )
        tenant = self.residency.tenants[hosted.spec.name]
        if opened["size"] > tenant.size:
            raise WorkerRefusedError("failed", f"its weights take {opened['size']} bytes, more than their files")
        hosted.opened_by = process
        if hosted.canary is None:
            # A server tells what it said before it first slept.
            hosted.canary = opened.get("canary")

    async def _evict(self, model: str) -> None:
        process = self._slot_of[model].alive
        if process is not None:
            await process.ask("evict", self._settings.load_timeout_s, model=model)

    def _fail(self, model: str, problem: NoAnswer, now: float) -> None:
        """A model could not come: those who wait for it learn why, and it is left alone for a while."""
        if self.residency.tenants[model].place is not None:
            self.residency.leave(model, ModelStage.COLD)
            if self.models[model].spec.url:
                self._start(self._evict, model)
        self.models[model].opened_by = None
        self.models[model].failures += 1
        if problem.reason == "reward_worker_died" and self.models[model].failures == 1:
            # Those who wait for it try again with the next worker.
            return
        self._block(self.models[model], problem)
        for ticket in self._lines.take(model, len(self._lines)):
            ticket.settle(problem, now)

    def _block(self, hosted: HostedModel, problem: NoAnswer) -> None:
        wait_s = backoff_s(hosted.failures, _FIRST_BLOCK_S, _LONGEST_BLOCK_S)
        hosted.blocked_until, hosted.problem = monotonic() + wait_s, problem
        log.error(
            "reward model is left alone",
            model=hosted.spec.name,
            reason=problem.reason,
            detail=problem.message,
            s=wait_s,
        )

    def _let_idle_go(self) -> None:
        """Scale to zero: what idles gives its memory back, and is closed later."""
        now, settings = monotonic(), self._settings
        for tenant in self.residency.in_stage(ModelStage.RESIDENT) if settings.park_after_s else ():
            since = max(tenant.used_at, tenant.came_at)
            idle = not tenant.pinned and not tenant.running and tenant.expected < 1
            if idle and now - since > settings.park_after_s and not self._restoring:
                self.park(tenant.name)
        for tenant in self.residency.in_stage(ModelStage.PARKED) if settings.close_after_s else ():
            if now - max(tenant.used_at, tenant.came_at) > settings.close_after_s and not self._restoring:
                self.residency.leave(tenant.name, ModelStage.COLD)
                self._start(self._close, tenant.name)

    def _start(self, step: Callable[[str], Any], model: str) -> None:
        assert self._tasks is not None
        self._tasks.start_soon(self._quietly, step, model)
        self._changed()

    async def _quietly(self, step: Callable[[str], Any], model: str) -> None:
        try:
            await step(model)
        except (WorkerDiedError, WorkerRefusedError) as error:
            log.info("reward model could not be put away", model=model, detail=str(error))

    async def _close(self, model: str) -> None:
        hosted = self.models[model]
        process, hosted.opened_by = hosted.opened_by, None
        if process is not None:
            await process.ask("close", self._settings.load_timeout_s, model=model)
