"""The rollout worker of TRL's AsyncGRPOTrainer. Experimental, as the trainer is."""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import anyio
import anyio.to_thread
from callsheet.environments import EpisodeTask
from callsheet.environments.seats import Seat, fill_seats
from callsheet.gateway.renderers.held_tokenizer import HeldTokenizer
from callsheet.integrations.trl.advantages import GradedSample, graded, group_metrics
from callsheet.integrations.trl.async_weights import CallsheetWeights
from callsheet.integrations.trl.rollout import CallsheetRollout
from callsheet.integrations.trl.trainer_parts import GenerationArguments

logger = logging.getLogger(__name__)

_HEARTBEAT_S: Final = 0.5
_PUT_TIMEOUT_S: Final = 0.5
_STOP_TIMEOUT_S: Final = 30.0
_MOST_METRICS: Final = 4096


class CallsheetRolloutWorker:
    """Pass it as `rollout_worker`. It keeps groups of trajectories under way and pushes their samples.

    It runs in a thread of the trainer's process. While the buffer is full no new group begins.

    Args:
        rollout: Tasks, target and settings; what it says of seats goes for each group.
        weights: The weight transfer of the same trainer.
        processing_class: The trainer's tokenizer.
        args: The trainer's settings.
        num_generations: Siblings of each task.
        groups_at_once: The most groups under way.
        max_buffered: The most samples that wait for the trainer.
        seed: Of the order of tasks.
    """

    def __init__(
        self,
        rollout: CallsheetRollout,
        weights: CallsheetWeights,
        processing_class: HeldTokenizer,
        args: GenerationArguments,
        *,
        num_generations: int = 8,
        groups_at_once: int = 4,
        max_buffered: int = 1024,
        seed: int = 0,
    ) -> None:
        for name, value in (("num_generations", num_generations), ("groups_at_once", groups_at_once)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self.rollout_buffer: queue.Queue[Any] = queue.Queue(max_buffered)
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue(_MOST_METRICS)
        self._rollout = rollout
        self._weights = weights
        self._policies = rollout.policies(processing_class, args)
        self._num_generations = num_generations
        self._groups_at_once = groups_at_once
        self._seed = seed
        self._model_versions: dict[int, int] = {}
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._ended.set()
        self._running: Future[None] | None = None
        self._alive_at = time.monotonic()

    def start(self) -> None:
        """Begins to produce. What a worker before it left in the job is cancelled first, and gives its place back."""
        if self._running is None:
            self._alive_at = time.monotonic()
            self._stopping.clear()
            self._running = self._rollout.session.start(self._run())

    def stop(self) -> None:
        """Cancels what is under way and closes the job."""
        running, self._running = self._running, None
        if running is None:
            return
        self._stopping.set()
        running.cancel()
        if not self._ended.wait(_STOP_TIMEOUT_S):
            logger.warning("the rollout worker did not end within %g s", _STOP_TIMEOUT_S)
        self._rollout.session.close_job()

    def update_model_version(self, model_version: int) -> None:
        """Notes which of the trainer's versions the newest policy version is."""
        if self._weights.version is not None:
            self._model_versions[self._weights.version] = model_version

    def check_health(self, stale_after_s: float) -> None:
        """Raises RuntimeError if the worker has ended, or its loop did not turn for so long."""
        if self._running is not None and self._running.done():
            raise RuntimeError("the rollout worker has ended") from self._running.exception()
        silent_s = time.monotonic() - self._alive_at
        if silent_s > stale_after_s:
            raise RuntimeError(f"the rollout worker's loop has not turned for {silent_s:.0f} s")

    async def _run(self) -> None:
        self._ended.clear()
        try:
            await self._produce()
        finally:
            self._ended.set()

    async def _produce(self) -> None:
        job = await self._rollout.session.job()
        await job.cancel("a rollout worker began anew")
        # Ids of an earlier worker of this job are never taken again: the version grows with each start.
        name = f"async/{self._weights.version or 0}"
        places = anyio.Semaphore(self._groups_at_once)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._beat)
            for number, task in enumerate(endless(self._rollout.task_set.tasks(), self._seed)):
                await places.acquire()
                tasks.start_soon(self._group, f"{name}/{number}", number, task, places)

    async def _group(self, group_id: str, number: int, task: EpisodeTask, places: anyio.Semaphore) -> None:
        try:
            size = self._num_generations
            seats = [Seat(f"{group_id}/{index}", group_id, size, task) for index in range(size)]
            of = self._rollout
            settings = self._policies.forced_on(of.seats)
            filled = await fill_seats(await of.session.job(), of.task_set, seats, self._policies, settings=settings)
            self._tell(group_metrics(filled, of.rule))
            for sample in graded(filled, of.rule):
                await anyio.to_thread.run_sync(self._put, self._sample(sample, number), abandon_on_cancel=True)
        finally:
            places.release()

    async def _beat(self) -> None:
        while True:
            self._alive_at = time.monotonic()
            await anyio.sleep(_HEARTBEAT_S)

    def _put(self, sample: Any) -> None:
        """Waits in a thread of its own until the trainer has room, or the worker is stopped."""
        while not self._stopping.is_set():
            try:
                sample.enqueued_at = time.time()
                self.rollout_buffer.put(sample, timeout=_PUT_TIMEOUT_S)
            except queue.Full:
                continue
            return

    def _tell(self, metrics: Mapping[str, float]) -> None:
        try:
            self.metrics_queue.put_nowait(dict(metrics))
        except queue.Full:
            logger.debug("metrics of a group were dropped: the trainer does not read them")

    def _sample(self, of: GradedSample, number: int) -> Any:
        import numpy as np
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        record = of.filled.record
        told = [0.0 if each is None else each for each in of.sample.log_probs]
        return RolloutSample(
            prompt=[{"role": "user", "content": record.task.task_id}],
            completion=[dict(message) for message in record.messages],
            input_ids=np.asarray(of.sample.token_ids, dtype=np.int64),
            completion_mask=np.asarray(of.sample.loss_mask, dtype=np.int64),
            old_log_probs=np.asarray(told, dtype=np.float32),
            advantage=of.advantage,
            model_version=model_version_of(of.policy_version, self._model_versions),
            group_id=number,
            metrics={"reward": of.reward, "rewards/callsheet_score": of.reward, "turns": float(record.turns)},
        )


def model_version_of(policy_version: int | None, known: Mapping[int, int]) -> int:
    """Returns the trainer's version of a policy version.

    One that is newer than all known ones was published a moment ago; each push adds 1 to both.

    Args:
        policy_version: The oldest that made a token of a sample; None where no engine told.
        known: The trainer's versions by policy version.
    """
    if not known:
        return 0
    newest = max(known)
    if policy_version is None:
        return known[newest]
    return known.get(policy_version, known[newest] + policy_version - newest)


def endless(tasks: Sequence[EpisodeTask], seed: int) -> Iterator[EpisodeTask]:
    """Yields all tasks again and again, each time in another order."""
    order = random.Random(seed)
    while True:
        yield from order.sample(tasks, len(tasks))
