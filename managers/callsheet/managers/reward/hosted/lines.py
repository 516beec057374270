"""The requests that wait, by model. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from callsheet.managers.reward.hosted.tickets import ModelRequest
from callsheet.managers.reward.hosted.turns import ModelLine


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
