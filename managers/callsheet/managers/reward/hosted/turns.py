"""Decides turns: which resident model runs its next batch, and which absent one is brought in meanwhile. Pure.

To bring a model in evicts another, and what waits for that one has to bring it in again. So a model is served to the
end of its line before it gives way (exhaustive service, as in polling systems with switch-over times). That alone would
let a rare model wait for ever: a line whose oldest request waits longer than its patience is late, and even a model
with a line of its own gives way to it, unless that is late as well.

A restore takes as long as several batches. So it is better to wait for the end of a batch than to evict an idle model
that many will ask for soon: a cheaper one that is about to be idle is waited for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from callsheet.managers.reward.hosted.places import PlaceChoice
from callsheet.managers.reward.hosted.residency import ModelStage, Residency


@dataclass(frozen=True, slots=True)
class ModelLine:
    """The requests that wait for a model.

    Attributes:
        model: Its name.
        waiting: How many, at least 1.
        oldest_at: When the oldest came, in seconds.
        first: Number of the oldest among all requests ever.
    """

    model: str
    waiting: int
    oldest_at: float
    first: int


@dataclass(frozen=True, slots=True)
class ModelRestore:
    """A model to bring in, and where."""

    model: str
    choice: PlaceChoice


@dataclass(frozen=True, slots=True)
class PatientTurns:
    """See the module's docstring.

    Attributes:
        patience_restores: A line is late once its oldest request has waited for so many restores of its model.
        least_patience_s: But not before so many seconds.
        short_line: A model with at most so many requests in its line will be idle soon.
        waiting_gain: How much cheaper to lose it must be than what is idle now, to be waited for; late lines do not.
        prewarm: Whether a model may come before it is asked for, where that pays.
        prewarm_gain: How much more valuable it must be than what gives way to it.
    """

    patience_restores: float = 6.0
    least_patience_s: float = 0.3
    short_line: int = 8
    waiting_gain: float = 4.0
    prewarm: bool = True
    prewarm_gain: float = 2.0

    def next_batch(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> str | None:
        """The resident model whose oldest request came first."""
        ready = [line for line in lines if residency.tenants[line.model].stage is ModelStage.RESIDENT]
        return min(ready, key=lambda line: line.first).model if ready else None

    def next_restore(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> ModelRestore | None:
        """The absent model whose restore ends most waiting, late ones first."""
        late = {line.model for line in lines if self._late(line, residency, now)}
        waiting = {line.model: line.waiting for line in lines}
        absent = [line for line in lines if residency.tenants[line.model].place is None]
        ranked = sorted(absent, key=lambda line: (line.model not in late, -_relief(line, residency, now), line.first))
        for line in ranked:
            stays = late if line.model in late else waiting.keys()
            choice = residency.choose(line.model, now, may_go=lambda name, stays=stays: name not in stays)  # type: ignore[misc]
            if choice is not None:
                waits = line.model not in late and self._cheaper_soon(line.model, choice, waiting, residency, now)
                return None if waits else ModelRestore(line.model, choice)
        return self._prewarmed(waiting, residency, now) if self.prewarm and not lines else None

    def _cheaper_soon(
        self, model: str, choice: PlaceChoice, waiting: Mapping[str, int], residency: Residency, now: float
    ) -> bool:
        """Returns whether a much cheaper model than those that would give way now is about to be idle."""
        soon = residency.choose(
            model, now, may_go=lambda name: waiting.get(name, 0) <= self.short_line, once_served=True
        )
        return soon is not None and soon.loss * self.waiting_gain < choice.loss

    def _late(self, line: ModelLine, residency: Residency, now: float) -> bool:
        patience = max(self.patience_restores * residency.restore_s(line.model), self.least_patience_s)
        return now - line.oldest_at > patience

    def _prewarmed(self, waiting: Iterable[str], residency: Residency, now: float) -> ModelRestore | None:
        away = [tenant.name for tenant in residency.tenants.values() if tenant.place is None]
        wanted = max(away, key=lambda name: residency.value(name, now), default=None)
        if wanted is None or not (value := residency.value(wanted, now)):
            return None
        choice = residency.choose(wanted, now, may_go=lambda name: name not in waiting)
        if choice is None or value <= self.prewarm_gain * choice.loss:
            return None
        return ModelRestore(wanted, choice)


def _relief(line: ModelLine, residency: Residency, now: float) -> float:
    """How much it matters to bring a model in, for each second of it.

    The waiting of the oldest request counts by its square, so that the longest waits become shorter; long lines count
    by much less than their length, so that rare models do not wait longer than they need to.
    """
    restore_s = max(residency.restore_s(line.model), 1e-9)
    waited_s: float = now - line.oldest_at + restore_s
    return float(line.waiting**0.25 * waited_s**2 / restore_s)
