"""Predictors in the service: attempts that end teach them, and the journal keeps what they learned."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final, TypeAlias

import anyio
import structlog
from callsheet.scheduler.core.state.entities import Attempt
from callsheet.scheduler.core.state.held_memory import HeldMemory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.events import AttemptEnded
from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.planner.engines.knowledge import EngineKnowledge
from callsheet.scheduler.planner.predictors import Predictors
from callsheet.scheduler.planner.predictors.nodes import Path, SavedNode
from callsheet.scheduler.planner.predictors.requests import observation_of, with_attempts
from callsheet.scheduler.store.journal import Journal
from callsheet.scheduler.store.read_only import DeadJournal
from sqlalchemy.exc import SQLAlchemyError

# Taken from the predictors on the event loop, written in one transaction that commits wait for: a millisecond or two.
NODES_PER_SAVE = 200
# Nobody waits for what is learned, so ends are gathered for a moment, away from the commits they came for, and learned
# from between two steps of the loop, a few at a time. In a flood of alike ones the first few tell enough of the rest.
GATHERING_S = 0.1
ALIKE_ENDS = 32
ENDS_PER_TURN = 8
MAX_WAITING_ENDS = 1024
HELD_MEMORY: Final = "held memory"
"""Begins the paths of what sandboxes held; a job and a label follow. Paths of predictors begin with a number."""

_Path: TypeAlias = tuple[int | str | None, ...]
_Saved: TypeAlias = tuple[_Path, Sequence[float]]

_log = structlog.get_logger(__name__)


class Learning:
    """Teaches predictors and saves what they learned; see the module's docstring."""

    def __init__(
        self,
        predictors: Predictors,
        engines: EngineKnowledge,
        journal: Journal,
        save_interval: float,
        held_memory: HeldMemory,
    ) -> None:
        self.predictors = predictors
        self._held_memory = held_memory
        self._engines = engines
        self._journal = journal
        self._save_interval = save_interval
        self._ended: deque[tuple[Attempt, AttemptEnded]] = deque(maxlen=MAX_WAITING_ENDS)
        self._alike: Counter[tuple[str, ActionKind, str]] = Counter()
        self._wake = anyio.Event()

    def attempts_ended(self, state: SchedulerState, ends: Sequence[AttemptEnded]) -> None:
        """Keeps ends of attempts to learn from; called before the core handles them and forgets the attempts."""
        for attempt, event in with_attempts(state, ends):
            request = attempt.action.request
            if request.generation is not None:
                # At once: where the next generation of its trajectory goes depends on it.
                self._learn_of_engine(attempt, event)
            likeness = (request.key.job_id, request.kind, request.label)
            self._alike[likeness] += 1
            if self._alike[likeness] <= ALIKE_ENDS:
                self._ended.append((attempt, event))
        self._wake.set()

    def _learn_of_engine(self, attempt: Attempt, event: AttemptEnded) -> None:
        try:
            self._engines.observe(attempt, event)
        except Exception:
            job_id, action_id = attempt.action.key
            _log.exception("end_not_learned_from", job_id=job_id, action_id=action_id, attempt=attempt.number)

    async def run(self) -> None:
        """Learns, and saves now and then, until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._learn)
            tasks.start_soon(self._save_periodically)

    async def close(self) -> None:
        """Learns from what still waits and saves all of it."""
        self.learn(MAX_WAITING_ENDS)
        await self.save()

    def learn(self, most: int) -> None:
        """Learns from up to `most` of the ends that wait. One that cannot be learned from is only logged."""
        for _ in range(min(most, len(self._ended))):
            attempt, event = self._ended.popleft()
            try:
                observation = observation_of(attempt, event)
                if observation is not None:
                    self.predictors.observe(observation)
            except Exception:
                job_id, action_id = attempt.action.key
                _log.exception("end_not_learned_from", job_id=job_id, action_id=action_id, attempt=attempt.number)

    async def _learn(self) -> None:
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            await anyio.sleep(GATHERING_S)
            self._alike.clear()
            while self._ended:
                self.learn(ENDS_PER_TURN)
                await anyio.lowlevel.checkpoint()

    async def _save_periodically(self) -> None:
        while True:
            await anyio.sleep(self._save_interval)
            await self.save()

    async def save(self) -> None:
        """Saves what changed, a few nodes at a time. What cannot be saved is only logged: nothing depends on it."""
        nodes = 0
        while any(changes := self._take_changes()):
            try:
                await anyio.to_thread.run_sync(_write, self._journal, *changes)
            except SQLAlchemyError as error:
                _log.error("predictors_not_saved", reason=str(error))
                return
            nodes += len(changes[0])
        if nodes:
            _log.debug("predictors_saved", nodes=nodes)

    def _take_changes(self) -> tuple[list[_Saved], list[_Path]]:
        nodes, held = self.predictors.take_changes(NODES_PER_SAVE), self._held_memory.take_unsaved(NODES_PER_SAVE)
        saved = [((HELD_MEMORY, *key), lives) for key, lives in held if lives]
        removed = [(HELD_MEMORY, *key) for key, lives in held if not lives]
        return [*nodes.saved, *saved], [*nodes.removed, *removed]


def load_learned(journal: Journal | DeadJournal, held_memory: HeldMemory) -> Predictors:
    """Returns predictors as they were saved, and fills `held_memory`; rows of another form are left out."""
    predictors, nodes, left_out = Predictors(), [], 0
    rows = [(json.loads(path), json.loads(numbers)) for path, numbers in journal.load_predictors()]
    for path, numbers in rows:
        if path[0] != HELD_MEMORY:
            nodes.append(SavedNode(Path(*path), numbers))
            continue
        try:
            _, job, label = path
            held_memory.put(job, label, numbers)
        except ValueError:
            left_out += 1
    left_out += predictors.restore(nodes)
    _log.info("predictors_loaded", nodes=len(rows) - left_out, left_out=left_out)
    return predictors


def _write(journal: Journal, saved: Sequence[_Saved], removed: Sequence[_Path]) -> None:
    rows = [(json.dumps(path), json.dumps(numbers)) for path, numbers in saved]
    journal.save_predictors(rows, [json.dumps(path) for path in removed])
