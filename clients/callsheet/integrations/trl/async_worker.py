"""The rollout worker of TRL's AsyncGRPOTrainer, and its weight transfer. Experimental, as the trainer is.

Each push of weights is a policy version. Rollouts finish their trajectories with what the trainer takes of batches.
"""

from __future__ import annotations

import itertools
import json
import logging
import math
import queue
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc
from callsheet.client import Batch, Canary, FinishedTrajectory, Job, NotFoundError, Staleness, Tensors
from callsheet.client.words.weights import UpdateModeName
from callsheet.environments import EpisodeRecord, EpisodeTask, FailureRule, count_failures
from callsheet.environments.seats import FilledSeat, Seat, fill_seats
from callsheet.gateway.renderers.held_tokenizer import HeldTokenizer
from callsheet.integrations.trl.publishing import VersionPublisher, tensors_of
from callsheet.integrations.trl.rollout import CallsheetRollout
from callsheet.integrations.trl.trainer_parts import AsyncArguments
from callsheet.v1.buffer_values import FinishedResult

logger = logging.getLogger(__name__)
_HEARTBEAT_S: Final = 0.5
_STOP_TIMEOUT_S: Final = 30.0
_MOST_METRICS: Final = 4096
_TAKE_WAIT_S: Final = 60.0
# What a trainer that was killed had taken comes back after so long.
_LEASE_S: Final = 60.0
# TRL's loader has a micro-batch ahead of the step that trains: with the second version after the trainer took a sample
# from its queue that sample has been trained on.
_VERSIONS_UNTIL_TRAINED: Final = 2
_LEAST_SPREAD: Final = 1e-8
# The trainer hands over tensors and no model, which could tell the answer. A small step may change it too little to be
# seen, and the first push is of weights that the engines may have: so it need not differ from the one before. Engines
# still have to name the version, and to answer alike.
_ANY_ANSWER: Final = Canary(unchanged=True)


class SampleQueue(queue.Queue[Any]):
    """The trainer's queue, which tells when the trainer finds it empty. No more than one batch is in it."""

    def __init__(self, on_empty: Callable[[], object]) -> None:
        super().__init__()
        self._on_empty = on_empty

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """Returns the next sample, as any queue."""
        if self.empty():
            self._on_empty()
        return super().get(block, timeout)


class CallsheetRolloutWorker:
    """Pass it as `rollout_worker`. Its rollouts finish trajectories into the job's buffer, and it takes batches there.

    It runs in a thread of the trainer's process. A batch is taken when the trainer has used up its queue, and
    acknowledged once it has been trained on. What the trainer had not trained on when it was killed comes again.

    The job is paced: by `JobSettings.staleness`, or within the trainer's `max_staleness`. So no more trajectories begin
    than can be trained on in time. No more than the trainer's `max_inflight_tasks` are open.

    Args:
        rollout: Tasks, target and settings; what it says of seats goes for each group.
        weights: The weight transfer of the same trainer.
        processing_class: The trainer's tokenizer.
        args: The trainer's settings.
        num_generations: Siblings of each task.
        at_least: The fewest trajectories that the trainer waits for; None is a group.
        at_most: The most that it takes at once, if so many are ready; None is a step of the optimiser.
        seed: Of the order of tasks.
    """

    def __init__(
        self,
        rollout: CallsheetRollout,
        weights: CallsheetWeights,
        processing_class: HeldTokenizer,
        args: AsyncArguments,
        *,
        num_generations: int = 8,
        at_least: int | None = None,
        at_most: int | None = None,
        seed: int = 0,
    ) -> None:
        step = args.per_device_train_batch_size * args.gradient_accumulation_steps * args.world_size
        self._at_most = step if at_most is None else at_most
        self._at_least = min(num_generations, self._at_most) if at_least is None else at_least
        bounds = (("num_generations", num_generations, math.inf), ("at_least", self._at_least, self._at_most))
        for name, value, most in bounds:
            if not 1 <= value <= most:
                raise ValueError(f"{name} is {value}; it must be between 1 and {most}")
        session = rollout.session
        staleness = session.settings.staleness or Staleness(admit_within=args.max_staleness)
        session.settings = replace(session.settings, staleness=staleness)
        live = args.max_inflight_tasks if args.max_inflight_tasks > 0 else args.max_staleness * step
        self._groups_open = max(1, live // num_generations)
        self.rollout_buffer: queue.Queue[Any] = SampleQueue(lambda: session.start(self._ask()))
        self.metrics_queue: queue.Queue[dict[str, float]] = queue.Queue(_MOST_METRICS)
        self._rollout = rollout
        self._weights = weights
        self._policies = rollout.policies(processing_class, args)
        self._num_generations = num_generations
        self._seed = seed
        self._versions_before = 0
        self._asked = anyio.Event()
        # Batches whose samples were put into the queue, as what tells that they were trained on; and how many versions
        # came since the trainer took the last of them.
        self._handed: dict[anyio.Event, int] = {}
        self._group_numbers = itertools.count()
        self._ended = threading.Event()
        self._ended.set()
        self._running: Future[None] | None = None
        self._alive_at = time.monotonic()

    def start(self) -> None:
        """Begins to produce. What a worker before it left running is cancelled; what that finished is trained on."""
        if self._running is None:
            self._alive_at = time.monotonic()
            self._running = self._rollout.session.start(self._run())

    def stop(self) -> None:
        """Cancels what is under way and closes the job."""
        running, self._running = self._running, None
        if running is None:
            return
        running.cancel()
        if not self._ended.wait(_STOP_TIMEOUT_S):
            logger.warning("the rollout worker did not end within %g s", _STOP_TIMEOUT_S)
        self._rollout.session.close_job()

    def update_model_version(self, model_version: int) -> None:
        """Notes which of the trainer's versions the newest policy version is, and what that was trained on."""
        if self._weights.version is not None:
            self._versions_before = self._weights.version - model_version
        self._rollout.session.start(self._count_version(used_up=self.rollout_buffer.empty()))

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
            job = await self._rollout.session.job()
            await job.cancel("a rollout worker began anew")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._beat)
                tasks.start_soon(self._serve, job, tasks)
                await self._produce(job, tasks)
        finally:
            self._ended.set()

    async def _produce(self, job: Job, tasks: anyio.abc.TaskGroup) -> None:
        # Ids of an earlier worker of this job are never taken again: the version grows with each start.
        name = f"async/{self._weights.version or 0}"
        places = anyio.Semaphore(self._groups_open)
        for number, task in enumerate(endless(self._rollout.task_set.tasks(), self._seed)):
            await places.acquire()
            tasks.start_soon(self._group, job, f"{name}/{number}", task, places)

    async def _group(self, job: Job, group_id: str, task: EpisodeTask, places: anyio.Semaphore) -> None:
        try:
            size, of = self._num_generations, self._rollout
            seats = [Seat(f"{group_id}/{index}", group_id, size, task) for index in range(size)]
            filled = await fill_seats(
                job,
                of.task_set,
                seats,
                self._policies,
                settings=self._policies.forced_on(of.seats),
                result_of=partial(result_of, rule=of.rule),
            )
            self._tell(group_metrics(filled, of.rule))
        finally:
            places.release()

    async def _ask(self) -> None:
        self._asked.set()

    async def _serve(self, job: Job, tasks: anyio.abc.TaskGroup) -> None:
        """Takes a batch each time that the trainer finds its queue empty."""
        while True:
            await self._asked.wait()
            self._asked = anyio.Event()
            if not self.rollout_buffer.empty():
                continue
            while not (
                batch := await job.take_batch(
                    at_least=self._at_least, at_most=self._at_most, wait_s=_TAKE_WAIT_S, lease_s=_LEASE_S
                )
            ):
                logger.info("fewer than %d trajectories finished in %g s", self._at_least, _TAKE_WAIT_S)
            trained = anyio.Event()
            tasks.start_soon(self._hold, batch, trained)
            self._tell(batch_metrics(batch.trajectories))
            self._handed[trained] = 0
            for group in batch.groups.values():
                number = next(self._group_numbers)
                for sample in graded(group):
                    self.rollout_buffer.put(self._sample(sample, number))

    async def _hold(self, batch: Batch, trained: anyio.Event) -> None:
        """Keeps a batch leased until it has been trained on, and acknowledges it then."""
        try:
            async with batch:
                await trained.wait()
        except NotFoundError:
            logger.warning("the lease of a batch ended before its acknowledgement: some of it may be trained on again")

    async def _count_version(self, *, used_up: bool) -> None:
        for each in list(self._handed)[: None if used_up else -1]:
            self._handed[each] += 1
            if self._handed[each] >= _VERSIONS_UNTIL_TRAINED:
                del self._handed[each]
                each.set()

    async def _beat(self) -> None:
        while True:
            self._alive_at = time.monotonic()
            await anyio.sleep(_HEARTBEAT_S)

    def _tell(self, metrics: Mapping[str, float]) -> None:
        try:
            self.metrics_queue.put_nowait(dict(metrics))
        except queue.Full:
            logger.debug("metrics were dropped: the trainer does not read them")

    def _sample(self, of: GradedSample, number: int) -> Any:
        import numpy as np
        from trl.experimental.async_grpo.async_rollout_worker import RolloutSample

        reward = of.trajectory.reward
        return RolloutSample(
            prompt=[{"role": "user", "content": of.task_id}],
            completion=list(of.messages),
            input_ids=np.asarray(of.token_ids, dtype=np.int64),
            completion_mask=np.asarray(of.loss_mask, dtype=np.int64),
            old_log_probs=np.asarray(of.log_probs, dtype=np.float32),
            advantage=of.advantage,
            model_version=of.trajectory.policy_version - self._versions_before,
            group_id=number,
            metrics={"reward": reward, "rewards/callsheet_score": reward, "turns": float(of.turns)},
            enqueued_at=time.time(),
        )


def endless(tasks: Sequence[EpisodeTask], seed: int) -> Iterator[EpisodeTask]:
    """Yields all tasks again and again, each time in another order."""
    order = random.Random(seed)
    while True:
        yield from order.sample(tasks, len(tasks))


@dataclass(frozen=True, slots=True)
class GradedSample:
    """One row for the trainer, which may be one of several of a trajectory.

    Attributes:
        trajectory: Its trajectory.
        advantage: By how many standard deviations the trajectory's reward is above the mean of its group.
        task_id: Its task.
        messages: The conversation.
        turns: Replies of the trajectory.
        token_ids: Of the whole path; shape (n,).
        loss_mask: 1 for a token that was sampled; shape (n,).
        log_probs: Of sampled tokens, 0 for others; shape (n,).
    """

    trajectory: FinishedTrajectory
    advantage: float
    task_id: str
    messages: Sequence[Mapping[str, Any]]
    turns: int
    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    log_probs: Sequence[float]


def result_of(record: EpisodeRecord, rule: FailureRule) -> FinishedResult | None:
    """Returns what an episode's trajectory finishes with; None if it is no sample."""
    reward = record.reward_by(rule).reward
    if reward is None:
        return None
    samples = [
        {
            "token_ids": sample.token_ids,
            "loss_mask": sample.loss_mask,
            "log_probs": [0.0 if each is None else each for each in sample.log_probs],
        }
        for sample in record.samples
    ]
    messages = [dict(message) for message in record.messages]
    kept = {"task_id": record.task.task_id, "messages": messages, "turns": record.turns}
    return FinishedResult(reward, json.dumps([kept, samples]).encode())


def advantages_of(rewards: Sequence[float]) -> list[float]:
    """Returns each reward against those of its siblings."""
    mean = sum(rewards) / len(rewards)
    spread = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) + _LEAST_SPREAD
    return [(reward - mean) / spread for reward in rewards]


def graded(group: Sequence[FinishedTrajectory]) -> Iterator[GradedSample]:
    """Yields the samples of the finished members of a group."""
    for each, advantage in zip(group, advantages_of([each.reward for each in group]), strict=True):
        kept, samples = json.loads(each.payload)
        for sample in samples:
            yield GradedSample(each, advantage, **kept, **sample)


def batch_metrics(trajectories: Sequence[FinishedTrajectory]) -> dict[str, float]:
    """Returns the size of a batch and how stale it was when it was taken, as AsyncGRPO takes metrics.

    It sums what has "total" in the last part of its name, takes the greatest of "max" and the mean of others.
    """
    staleness = [each.staleness for each in trajectories]
    return {
        "callsheet/batch_trajectories": float(len(staleness)),
        "callsheet/staleness_mean": sum(staleness) / len(staleness),
        "callsheet/staleness_max": float(max(staleness)),
        **{f"callsheet/staleness/{versions}_total": float(count) for versions, count in Counter(staleness).items()},
    }


def group_metrics(group: Sequence[FilledSeat], rule: FailureRule) -> dict[str, float]:
    """Returns the counts of a group; see `batch_metrics`."""
    counts = count_failures(each.record.reward_by(rule) for each in group).metrics()
    counts["replaced"] = float(sum(each.replaced for each in group))
    counts["cut_replies"] = float(sum(each.record.cut_replies for each in group))
    return {f"callsheet/{name}_total": value for name, value in counts.items()}


class CallsheetWeights:
    """Pass it as `weight_transfer`, and give the same object to the `CallsheetRolloutWorker`.

    Engines decide when they take weights: by default running requests go on, with new weights from the next token on.
    Each token's log-probability is of the version that sampled it.

    Args:
        rollout: The rollouts. Their job publishes the weights, for the service that generates for them.
        mode: What becomes of requests that run meanwhile; see `Job.publish`.
        at_once: The most engines that update at a time.
        wait_s: The longest wait until the engines have proved the weights; 0 does not wait.
    """

    def __init__(
        self, rollout: CallsheetRollout, *, mode: UpdateModeName = "keep", at_once: int = 1, wait_s: float = 600.0
    ) -> None:
        self._publisher = VersionPublisher(
            rollout.session, service=rollout.model, mode=mode, at_once=at_once, wait_s=wait_s
        )

    @property
    def version(self) -> int | None:
        """The newest policy version that was published; None before the first."""
        return self._publisher.version

    def init_weight_transfer(self) -> None:
        """Opens the job."""
        self._publisher.next_version()

    def pause(self) -> None:
        """Does nothing: engines wait for what they must wait for."""

    def send_weights(self, iterator: Iterator[tuple[str, Any]]) -> None:
        """Publishes the weights, and waits until engines serve them.

        Raises:
            WeightsNotProvedError: No engine does in time.
        """
        self._publisher.publish(Tensors(tensors_of(dict(iterator))), _ANY_ANSWER)

    def resume(self) -> None:
        """Does nothing."""

    def destroy(self) -> None:
        """Does nothing: the worker closes the job."""
