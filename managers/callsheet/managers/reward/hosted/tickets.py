"""Requests to hosted models, on their way to an answer."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import anyio
from callsheet.managers.reward.hosted.turns import ModelLine
from callsheet.managers.reward.hosted.worker import WorkerRefusedError


class AnswerTrouble(Enum):
    """Party at fault if there is no answer."""

    MODEL = "model"
    """The machinery: a later try may succeed."""
    QUESTION = "question"
    """The request: its model can never answer it."""
    MEMORY = "memory"
    """The request takes more memory than there is."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Reason why a request has no answer.

    Attributes:
        trouble: Who is at fault.
        reason: A stable word.
        message: For people.
        text: The text of a judge nevertheless.
    """

    trouble: AnswerTrouble
    reason: str
    message: str
    text: str = ""


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    """Answer of a model.

    Attributes:
        score: The raw logit, the sum of log-probabilities, or the judge's score.
        log_probs: Log-probabilities of a teacher, one for each token of `token_ids`.
        token_ids: Those tokens.
        text: Text of a judge.
    """

    score: float
    log_probs: tuple[float, ...] = ()
    token_ids: tuple[int, ...] = ()
    text: str = ""


@dataclass(slots=True, eq=False)
class ModelRequest:
    """A request.

    Attributes:
        model: Whom it asks.
        question: What, as `questions` has it.
        number: Its place among all requests ever.
        asked_at: When it came, in seconds.
        began_at: When its batch began; None while it waits.
        ended_at: When that ended.
        share_s: Its share of the seconds that took.
        cpu_s: Its share of the CPU seconds of its batch.
        tokens: What was computed for it, in the words of the contract's Cost; also where no answer came of it.
        restore_s: Seconds that its model's restore took, if it waited for one.
        answer: What came of it; None if it was withdrawn.
        done: Set then.
    """

    model: str
    question: dict[str, Any]
    number: int
    asked_at: float
    began_at: float | None = None
    ended_at: float | None = None
    share_s: float = 0.0
    cpu_s: float = 0.0
    tokens: dict[str, int] = field(default_factory=dict)
    restore_s: float = 0.0
    answer: ModelAnswer | NoAnswer | None = None
    done: anyio.Event = field(default_factory=anyio.Event)

    def execution_s(self, now: float) -> float:
        """How long it has been computed so far."""
        if self.began_at is None:
            return 0.0
        return (now if self.ended_at is None else self.ended_at) - self.began_at

    def settle(self, answer: ModelAnswer | NoAnswer | None, now: float) -> None:
        """It has its end."""
        if not self.done.is_set():
            self.answer, self.ended_at = answer, now
            self.done.set()


def answer_of(found: dict[str, Any]) -> ModelAnswer | NoAnswer:
    """Returns the meaning of a worker's answer."""
    if "problem" in found:
        return NoAnswer(AnswerTrouble.QUESTION, found["problem"], found["message"], found.get("text", ""))
    if "out_of_memory" in found:
        return NoAnswer(AnswerTrouble.MEMORY, "reward_out_of_memory", found["out_of_memory"])
    if "no_verdict" in found:
        return NoAnswer(AnswerTrouble.MODEL, "no_verdict", found["no_verdict"], found["text"])
    if "garbage" in found:
        return NoAnswer(AnswerTrouble.MODEL, "non_finite_score", found["garbage"])
    if "failed" in found:
        return NoAnswer(AnswerTrouble.MODEL, "scorer_failed", found["failed"])
    return ModelAnswer(
        found["score"],
        tuple(found.get("log_probs", ())),
        tuple(found.get("token_ids", ())),
        found.get("text", ""),
    )


def refused(error: WorkerRefusedError, reason: str = "scorer_failed") -> NoAnswer:
    """Returns the answer to a request that a worker could not do."""
    word = "reward_out_of_memory" if error.kind == "out_of_memory" else reason
    return NoAnswer(AnswerTrouble.MODEL, word, str(error))


class ModelLines:
    """A line for each model, first come first served."""

    def __init__(self, models: Iterable[str]) -> None:
        """Starts with empty ones."""
        self._lines: dict[str, deque[ModelRequest]] = {model: deque() for model in models}

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, ticket: ModelRequest) -> None:
        """A request joins the end of its line."""
        self._lines[ticket.model].append(ticket)

    def remove(self, ticket: ModelRequest) -> bool:
        """Takes a request out; returns whether it was waiting."""
        try:
            self._lines[ticket.model].remove(ticket)
        except ValueError:
            return False
        return True

    def take(self, model: str, most: int) -> list[ModelRequest]:
        """Takes the first requests of a line, at most so many."""
        line = self._lines[model]
        return [line.popleft() for _ in range(min(most, len(line)))]

    def note_restore(self, model: str, began: float, now: float) -> None:
        """A model came: the part of that for which its requests have waited is noted on them."""
        for ticket in self._lines[model]:
            ticket.restore_s += now - max(began, ticket.asked_at)

    def waiting(self, models: Iterable[str]) -> list[ModelLine]:
        """The lines of these models that are not empty."""
        return [
            ModelLine(model, len(line), line[0].asked_at, line[0].number)
            for model in models
            if (line := self._lines[model])
        ]
