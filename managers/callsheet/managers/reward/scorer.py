"""Scores token sequences with a torch model, off the event loop and in batches.

Each batch runs in a fresh thread that is pinned to the cores granted to its requests before torch starts the kernels'
own threads: those inherit the cores, and end with it. Requests that arrive together form one batch. Batches on granted
cores run side by side, as their cores are disjoint; requests without cores share one lane: what arrives while it is
busy forms the next batch.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Sequence

import structlog
import torch
from callsheet.managers.models.transformer import ScoringModel
from callsheet.managers.models.weights import load_model
from callsheet.managers.reward.batches import plan_batches
from callsheet.managers.reward.scores import ModelScore, ScoreRequest, ScorerError
from callsheet.managers.reward.settings import RewardSettings

log = structlog.get_logger(__name__)


class Scorer:
    """A scoring model and the threads that run it. Must be used from one event loop."""

    def __init__(self, model: ScoringModel, *, max_batch_tokens: int = 16_384, max_requests: int = 1024) -> None:
        """Takes the model over.

        Args:
            model: The model; belongs to the scorer from now on.
            max_batch_tokens: Padded tokens of one forward pass.
            max_requests: The most requests at once; more are refused as busy.
        """
        self.config = model.config
        self._model = model.eval().requires_grad_(False)
        self._max_batch_tokens = max_batch_tokens
        self._max_requests = max_requests
        self._waiting: list[ScoreRequest] = []
        self._in_flight = 0
        self._lane_busy = False
        self._flush_planned = False
        self._closed = False
        self._threads: set[threading.Thread] = set()

    def submit(self, token_ids: tuple[int, ...], cores: Sequence[int]) -> ScoreRequest:
        """Queues a sequence that the model can take; its batch begins with the event loop's next turn.

        Raises:
            ScorerError: Too many requests, or the scorer is closed.
        """
        if self._closed:
            raise ScorerError("scorer_closed", "the scorer is closed")
        if len(self._waiting) + self._in_flight >= self._max_requests:
            raise ScorerError("scorer_busy", f"{self._max_requests} requests are being scored, which is the bound")
        loop = asyncio.get_running_loop()
        ticket = ScoreRequest(token_ids, frozenset(cores), loop.create_future())
        self._waiting.append(ticket)
        self._plan_flush(loop)
        return ticket

    def withdraw(self, ticket: ScoreRequest) -> None:
        """Takes back a request that has not begun; one that has goes on to its end."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
            if not ticket.answer.done():
                ticket.answer.set_result(None)

    def shut(self) -> None:
        """Takes no more requests and withdraws those that have not begun."""
        self._closed = True
        for ticket in list(self._waiting):
            self.withdraw(ticket)

    def join(self, timeout_s: float) -> None:
        """Waits for the batches that run; blocks up to `timeout_s`, so call it from a thread of its own."""
        deadline = time.monotonic() + timeout_s
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _plan_flush(self, loop: asyncio.AbstractEventLoop) -> None:
        if not self._flush_planned:
            self._flush_planned = True
            loop.call_soon(self._flush)

    def _flush(self) -> None:
        """Starts a batch of all that have cores, and one of all others if their lane is free."""
        self._flush_planned = False
        granted = [ticket for ticket in self._waiting if ticket.cores]
        others = [ticket for ticket in self._waiting if not ticket.cores]
        shared, self._waiting = ([], others) if self._lane_busy else (others, [])
        self._lane_busy = self._lane_busy or bool(shared)
        for batch in (granted, shared):
            if batch:
                self._start(batch)

    def _start(self, tickets: list[ScoreRequest]) -> None:
        loop = asyncio.get_running_loop()
        cores = frozenset[int]().union(*(ticket.cores for ticket in tickets))
        self._in_flight += len(tickets)
        for ticket in tickets:
            ticket.waited_s = time.monotonic() - ticket.asked_at

        def work() -> None:
            outcome = self._attempt(tickets, cores)
            try:
                loop.call_soon_threadsafe(self._finish, thread, tickets, outcome)
            except RuntimeError:
                log.info("event loop is closed, scores dropped", requests=len(tickets))

        thread = threading.Thread(target=work, name="scorer", daemon=True)
        self._threads.add(thread)
        thread.start()

    def _finish(
        self, thread: threading.Thread, tickets: list[ScoreRequest], outcome: list[ModelScore] | ScorerError
    ) -> None:
        self._threads.discard(thread)
        self._in_flight -= len(tickets)
        if not tickets[0].cores:
            self._lane_busy = False
        for index, ticket in enumerate(tickets):
            if not ticket.answer.done():
                ticket.answer.set_result(outcome if isinstance(outcome, ScorerError) else outcome[index])
        if self._waiting:
            self._plan_flush(asyncio.get_running_loop())

    def _attempt(self, tickets: list[ScoreRequest], cores: frozenset[int]) -> list[ModelScore] | ScorerError:
        """Runs in a batch's thread."""
        try:
            if cores:
                os.sched_setaffinity(0, cores)
            torch.set_num_threads(max(1, len(cores)))
            return self._score([ticket.token_ids for ticket in tickets], time.thread_time)
        except Exception as error:  # Whatever it is, those who wait must learn of it.
            log.exception("scoring failed", requests=len(tickets))
            return ScorerError("scorer_failed", f"{type(error).__name__}: {error}")

    def _score(self, sequences: list[tuple[int, ...]], clock: Callable[[], float]) -> list[ModelScore]:
        scores: dict[int, ModelScore] = {}
        for batch in plan_batches([len(tokens) for tokens in sequences], self._max_batch_tokens):
            started = clock()
            values = self._forward([sequences[index] for index in batch])
            cpu_s_per_token = (clock() - started) / sum(len(sequences[index]) for index in batch)
            for index, value in zip(batch, values, strict=True):
                scores[index] = ModelScore(value, cpu_s_per_token * len(sequences[index]))
        return [scores[index] for index in range(len(sequences))]

    def _forward(self, sequences: list[tuple[int, ...]]) -> list[float]:
        longest = max(len(tokens) for tokens in sequences)
        padded = torch.tensor([(*tokens, *([0] * (longest - len(tokens)))) for tokens in sequences])
        lengths = torch.tensor([len(tokens) for tokens in sequences])
        with torch.inference_mode():
            values: list[float] = self._model(padded, lengths).tolist()
        return values


def load_scorer(settings: RewardSettings) -> Scorer:
    """Loads the scoring model.

    Raises:
        WeightsError: The weights cannot be used.
    """
    model = load_model(ScoringModel, settings.weights, settings.shape, settings.seed)
    scorer = Scorer(model, max_batch_tokens=settings.max_batch_tokens)
    log.info("scorer ready")
    return scorer
