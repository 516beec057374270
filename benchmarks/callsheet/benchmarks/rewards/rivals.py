"""Two simpler ways to swap models, for the same workers. Pure. Both evict what was used longest ago."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from callsheet.managers.reward.hosted.places import Occupant, PlaceChoice, cheapest_choice
from callsheet.managers.reward.hosted.residency import ModelStage, Residency
from callsheet.managers.reward.hosted.turns import ModelLine, ModelRestore


@dataclass(frozen=True, slots=True)
class FirstCome:
    """Strictly the oldest request next; its model comes if it is not there. Others of its model join its batch."""

    def next_batch(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> str | None:
        """The model of the oldest request, once it is there."""
        oldest = min(lines, key=lambda line: line.first, default=None)
        return oldest.model if oldest is not None and _there(oldest, residency) else None

    def next_restore(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> ModelRestore | None:
        """The model of the oldest request."""
        oldest = min(lines, key=lambda line: line.first, default=None)
        return _restore(oldest, residency) if oldest is not None else None


@dataclass(frozen=True, slots=True)
class ResidentFirst:
    """Requests whose model is there pass those for which one must come, as ARL-Tangram's rewards do."""

    def next_batch(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> str | None:
        """The model of the oldest request whose model is there."""
        there = [line for line in lines if _there(line, residency)]
        return min(there, key=lambda line: line.first).model if there else None

    def next_restore(self, lines: Sequence[ModelLine], residency: Residency, now: float) -> ModelRestore | None:
        """The model of the oldest request, where none of those that wait has its model there."""
        if not lines or any(_there(line, residency) for line in lines):
            return None
        return _restore(min(lines, key=lambda line: line.first), residency)


def _there(line: ModelLine, residency: Residency) -> bool:
    return residency.tenants[line.model].stage is ModelStage.RESIDENT


def _restore(line: ModelLine, residency: Residency) -> ModelRestore | None:
    tenant = residency.tenants[line.model]
    if tenant.place is not None:
        return None
    holders = {
        name: Occupant(each.place, inf if each.running or each.stage is not ModelStage.RESIDENT else 0.0, each.used_at)
        for name, each in residency.tenants.items()
        if each.place is not None
    }
    choice: PlaceChoice | None = cheapest_choice(residency.devices, tenant.width, tenant.size, holders)
    return None if choice is None else ModelRestore(line.model, choice)
