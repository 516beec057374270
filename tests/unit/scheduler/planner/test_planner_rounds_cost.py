"""What keeps the cost of a round even: members looked at as they are needed, options that do not grow old together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.ready import ClassKey, ReadyClass
from callsheet.scheduler.planner.fleet.placed import PlacedActions
from callsheet.scheduler.planner.fleet.placement import Members
from callsheet.scheduler.planner.fleet.pools import Fleet
from callsheet.scheduler.planner.round.estimates import Estimates
from callsheet.scheduler.planner.round.options import Estimate
from callsheet.scheduler.planner.round.snapshot import BLOCK_LIFE_S, Snapshots

from tests.support.core_requests import action_request, fixed
from tests.support.core_world import world_with_manager


def waiting(count: int) -> ReadyClass:
    """A class of so many members in a core's ready queue."""
    world, _ = world_with_manager(cores=1)
    world.submit(*(action_request(f"a{number}", demand=fixed(cpu=1)) for number in range(count)))
    (ready,) = world.state.ready.classes.values()
    return ready


class Watched(ReadyClass):
    """A class that counts how many of its members were looked at."""

    def __init__(self, ready: ReadyClass) -> None:
        super().__init__(ready.key)
        self.count = ready.count
        self.looked_at = 0
        self._members = list(ready)

    def __iter__(self) -> Iterator[Action]:
        for member in self._members:
            self.looked_at += 1
            yield member


def test_members_are_handed_out_once_and_in_order() -> None:
    members = Members(waiting(3))
    names = []
    while members.left:
        expected = members.head()
        taken = members.pop()
        assert taken is expected
        names.append(taken.key.action_id)
    assert names == ["a0", "a1", "a2"]


def test_only_those_members_that_are_wanted_are_looked_at() -> None:
    ready = Watched(waiting(50))
    members = Members(ready)
    assert members.left == 50
    assert members.pop().key.action_id == "a0"
    assert members.pop().key.action_id == "a1"
    assert ready.looked_at == 2
    assert members.left == 48


class NeverAlike(Estimates):
    """Estimates of a class that are others each time."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: Counter[ClassKey] = Counter()

    def of_class(self, key: ClassKey) -> Estimate:
        self.asked[key] += 1
        return Estimate(1.0, float(self.asked[key] % 2 + 1))


def test_options_are_kept_as_long_as_nothing_else_is_expected() -> None:
    world, _ = world_with_manager(cores=4)
    world.submit(action_request("a", demand=fixed(cpu=1)))
    (key,) = world.state.ready.classes
    fleet = Fleet()
    fleet.refresh(world.state, PlacedActions(), lambda _: 1.0)
    snapshots = Snapshots(Estimates(), dispatch_cap=256, ageing=0.2, hold_after=5.0)
    first = snapshots.block(key, fleet, 0.0)
    assert snapshots.block(key, fleet, 3 * BLOCK_LIFE_S) is first


@pytest.mark.parametrize("step_s", [0.05, 0.25])
def test_options_made_in_one_round_are_not_made_anew_in_another(step_s: float) -> None:
    classes, rounds = 40, round(3 * BLOCK_LIFE_S / step_s)
    world, _ = world_with_manager(cores=4)
    world.submit(
        *(
            replace(action_request(f"a{number}", demand=fixed(cpu=1)), label=f"label-{number}")
            for number in range(classes)
        )
    )
    keys: list[ClassKey] = list(world.state.ready.classes)
    assert len(keys) == classes
    fleet = Fleet()
    fleet.refresh(world.state, PlacedActions(), lambda _: 1.0)
    snapshots = Snapshots(NeverAlike(), dispatch_cap=256, ageing=0.2, hold_after=5.0)
    known = [snapshots.block(key, fleet, 0.0) for key in keys]
    made_anew = []
    for number in range(1, rounds + 1):
        blocks = [snapshots.block(key, fleet, number * step_s) for key in keys]
        made_anew.append(sum(new is not old for new, old in zip(blocks, known, strict=True)))
        known = blocks
    # In each of the lives all of them, a few at a time.
    assert 2 * classes <= sum(made_anew) <= 4 * classes
    assert max(made_anew) <= 1 + 2 * classes * step_s / BLOCK_LIFE_S
