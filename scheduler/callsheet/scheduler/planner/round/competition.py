"""Groups classes that compete: those that could take the same units of a pool, directly or through other classes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from callsheet.scheduler.core.state.ready import ReadyClass
from callsheet.scheduler.planner.question.instance import Integers, OptionBlock, PlanningInstance


class Servable(NamedTuple):
    """A ready class and how its members can be started."""

    ready: ReadyClass
    block: OptionBlock


class Competitors(NamedTuple):
    """Classes that compete with each other and with no others, and the rows they want."""

    classes: list[Servable]
    rows: frozenset[int]


def competing(servable: Sequence[Servable]) -> list[Competitors]:
    """Splits classes by who competes with whom, in the order of their first classes."""
    alike: dict[frozenset[int], list[Servable]] = {}
    for each in servable:
        alike.setdefault(each.block.rows, []).append(each)
    found: list[Competitors] = []
    for rows, classes in alike.items():
        mine = Competitors(classes, rows)
        apart = []
        for others in found:
            if others.rows.isdisjoint(mine.rows):
                apart.append(others)
            else:
                mine = Competitors(others.classes + mine.classes, others.rows | mine.rows)
        found = [*apart, mine]
    return found


def some_fit(classes: Sequence[Servable], free: Integers) -> bool:
    """Returns whether any member of some classes could start now, judged by the rows only.

    Args:
        classes: The classes.
        free: The free units of each row; the last one stands for "no row".
    """
    return any(bool((block.amount <= free[block.resource]).all(axis=1).any()) for _, block in classes)


def rows_of(instance: PlanningInstance) -> frozenset[int]:
    """The rows that the classes of an instance want."""
    return frozenset().union(*(each.block.rows for each in instance.classes))
