"""The ledger of a node's memory: nobody can be killed for others, and all come to their end, whatever grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from math import ceil, log2
from random import Random

from callsheet.managers.sandbox.memory_ledger import FIRST_PATIENCE_S, MemoryLedger, MemoryTerms, Stay
from hypothesis import given, settings
from hypothesis import strategies as st

LIMIT_MIB = 100


@dataclass(eq=False)
class Trajectory:
    """A reset, steps after each of which it holds so much, and a reward in a copy or none."""

    name: str
    demand_mib: int
    guaranteed: bool
    held_mib: list[int]
    copy_mib: int | None
    known: bool
    at: int = 0
    waits: bool = False
    runs: bool = False
    ended: bool = False
    refused: bool = False

    @property
    def in_copy(self) -> bool:
        return self.at == len(self.held_mib)

    @property
    def waits_as(self) -> str:
        return f"{self.name} copy" if self.in_copy else self.name


@dataclass
class World:
    """Does what managers do with the ledger, and keeps books of its own."""

    ledger: MemoryLedger
    used_mib: dict[str, int] = field(default_factory=dict)
    now: float = 0.0

    def want(self, each: Trajectory) -> None:
        each.waits = True
        if each.in_copy:
            assert each.copy_mib is not None
            terms = MemoryTerms(Stay.ATTEMPT, beside=each.name)
            if not self.ledger.fits_alone(each.copy_mib, terms):
                self.refuse(each)
                return
            self.ledger.ask(each.waits_as, each.copy_mib, terms)
        elif each.at == 0:
            if not self.ledger.fits_alone(each.demand_mib, MemoryTerms()):
                assert each.demand_mib > LIMIT_MIB
                self.refuse(each)
                return
            self.ledger.ask(each.name, each.demand_mib, MemoryTerms(guaranteed=each.guaranteed))
        elif not self.ledger.thaw(each.name):
            self.begin(each)

    def begin(self, each: Trajectory) -> None:
        each.waits, each.runs = False, True
        self.used_mib[each.waits_as] = (each.copy_mib or 0) if each.in_copy else each.demand_mib

    def end_run(self, each: Trajectory) -> None:
        each.runs = False
        if each.in_copy:
            self.forget(each.waits_as)
            self.finish(each)
            return
        held = each.held_mib[each.at]
        self.used_mib[each.name] = held
        self.ledger.rest(each.name, held if each.known else None)
        each.at += 1
        if each.in_copy and each.copy_mib is None:
            self.finish(each)

    def refuse(self, each: Trajectory) -> None:
        each.refused = True
        self.finish(each)

    def finish(self, each: Trajectory) -> None:
        each.ended, each.waits = True, False
        self.forget(each.name)

    def forget(self, name: str) -> None:
        self.used_mib.pop(name, None)
        self.ledger.give_back(name)

    def advance(self, trajectories: list[Trajectory]) -> None:
        by_name = {each.waits_as: each for each in trajectories if each.waits}
        while True:
            for name in self.ledger.advance(self.now):
                self.begin(by_name[name])
            if (stuck := self.ledger.stuck()) is None:
                return
            assert by_name[stuck].in_copy, "only a reward is refused"
            self.ledger.withdraw(stuck)
            self.refuse(by_name[stuck])


@st.composite
def trajectories(draw: st.DrawFn) -> list[Trajectory]:
    same = draw(st.none() | st.integers(1, LIMIT_MIB))
    made = []
    for number in range(draw(st.integers(1, 12))):
        demand = same or draw(st.integers(1, LIMIT_MIB + 5))
        held = draw(st.lists(st.integers(0, demand), min_size=1, max_size=4).map(sorted))
        copy = draw(st.none() | st.just(demand) | st.integers(1, LIMIT_MIB))
        flags = draw(st.integers(0, 9)), draw(st.integers(0, 9))
        made.append(Trajectory(str(number), demand, flags[0] == 0, held, copy, flags[1] != 0))
    return made


def play(made: list[Trajectory], random: Random) -> None:
    """Plays all to their end in some order; checks the sum at each moment."""
    world = World(MemoryLedger(LIMIT_MIB, by_need=True))
    while not all(each.ended for each in made):
        world.advance(made)
        can_act = [each for each in made if not each.ended and not each.waits]
        if all(each.ended for each in made):
            break
        assert can_act, "all wait"
        each = random.choice(can_act)
        if each.runs:
            world.end_run(each)
        else:
            world.want(each)
        world.now += random.choice([0.0, 0.5, FIRST_PATIENCE_S, 100.0])
        assert sum(world.used_mib.values()) <= world.ledger.booked_mib <= LIMIT_MIB
    assert world.ledger.booked_mib == 0
    assert not world.ledger.line


@given(trajectories(), st.randoms(use_true_random=False))
def test_the_sum_stays_within_the_limit_and_all_come_to_their_end(made: list[Trajectory], random: Random) -> None:
    play(made, random)
    for each in made:
        reserved = 3 * each.demand_mib <= LIMIT_MIB and (each.copy_mib or 0) <= each.demand_mib
        assert not (each.refused and reserved)


@given(st.integers(1, LIMIT_MIB // 3), st.integers(1, 30), st.randoms(use_true_random=False))
def test_with_room_for_a_reward_beside_it_nothing_of_equal_demand_is_refused(
    demand: int, count: int, random: Random
) -> None:
    """All that run end with their whole demand held, and are scored in a copy."""
    made = [Trajectory(str(number), demand, False, [demand], demand, True) for number in range(count)]
    play(made, random)
    assert not any(each.refused for each in made)


@given(trajectories(), st.integers(1, LIMIT_MIB), st.randoms(use_true_random=False))
def test_a_large_one_goes_before_new_ones_that_leave_it_no_memory(
    made: list[Trajectory], demand: int, random: Random
) -> None:
    world = World(MemoryLedger(LIMIT_MIB, by_need=True))
    large = Trajectory("large", demand, False, [0], None, True)
    first, later = made[: len(made) // 2], made[len(made) // 2 :]
    for each in first:
        world.want(each)
        world.advance(made)
    world.want(large)
    everyone = [*first, large, *later]
    while not (large.runs or large.ended):
        world.advance(everyone)
        can_act = [each for each in everyone if not each.ended and not each.waits and not large.runs]
        if large.runs:
            break
        assert can_act
        each = random.choice(can_act)
        if each.runs:
            world.end_run(each)
        else:
            world.want(each)
        world.now += random.choice([0.0, 0.5, FIRST_PATIENCE_S, 100.0])
        assert demand + sum(each.demand_mib for each in later if not each.ended and (each.at or each.runs)) <= LIMIT_MIB


@dataclass(frozen=True)
class Steps:
    """One step after another in a sandbox, of the same real and expected seconds; `most` of them."""

    demand_mib: int
    real_s: float
    expected_s: float = 0.0
    at: float = 0.0
    most: int = 1_000_000


def begin_steps(made: dict[str, Steps], until: float) -> dict[str, list[tuple[float, float]]]:
    """Runs steps on a node under virtual time, with a look each second; returns when each was asked for and began."""
    ledger = MemoryLedger(LIMIT_MIB, by_need=True)
    for name, steps in made.items():
        ledger.ask(name, steps.demand_mib, MemoryTerms())
        assert ledger.advance(0.0) == [name]
        ledger.rest(name, 0)
    events = [*((steps.at, name) for name, steps in made.items()), *((float(at), "") for at in range(int(until)))]
    heapify(events)
    asked: dict[str, float] = {}
    begun: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    while events and events[0][0] < until:
        now, name = heappop(events)
        if name in asked:
            del asked[name]
            ledger.rest(name, 0)
        if name and len(begun[name]) < made[name].most:
            asked[name] = now
            ledger.thaw(name, made[name].expected_s)
        for each in ledger.advance(now):
            begun[each].append((asked[each], now))
            heappush(events, (now + made[each].real_s, each))
    return begun


def longest_wait_s(longest_s: float) -> float:
    """The documented bound of a large step's wait, once only those that passed it are in its way."""
    if longest_s <= FIRST_PATIENCE_S:
        return FIRST_PATIENCE_S + longest_s
    doublings = ceil(log2(longest_s / FIRST_PATIENCE_S))
    return (7 + doublings) * longest_s + 2 * doublings


SECONDS = st.sampled_from([0.25, 1.0, 5.0, 20.0, 60.0])
EXPECTED = st.just(0.0) | SECONDS
SMALL = st.lists(st.builds(Steps, st.integers(1, 30), SECONDS, EXPECTED), min_size=1, max_size=8)


@given(SMALL, st.lists(st.tuples(st.integers(50, LIMIT_MIB), SECONDS, EXPECTED), min_size=2, max_size=4))
@settings(max_examples=25)
def test_large_steps_have_a_longest_wait_whatever_is_expected_of_those_that_pass(
    small: list[Steps], large: list[tuple[int, float, float]]
) -> None:
    made = {f"small {number}": each for number, each in enumerate(small)}
    for number, (demand, real_s, expected_s) in enumerate(large):
        made[f"large {number}"] = Steps(demand, real_s, expected_s, at=2.0 + number, most=1)
    longest_s = max(each.real_s for each in made.values())
    # Those that came before it go first, one after another at worst.
    free_at = 2.0 + sum(each.real_s for each in small)
    begun = begin_steps(made, until=2_000.0)
    for number, (_, real_s, _) in enumerate(large):
        ((_, began),) = begun[f"large {number}"]
        assert began <= free_at + longest_wait_s(longest_s)
        free_at = max(free_at, began + real_s)


@given(SMALL, st.integers(50, LIMIT_MIB), EXPECTED)
@settings(max_examples=40)
def test_small_steps_keep_half_of_their_rate_beside_one_that_waits_for_a_hung_one(
    small: list[Steps], demand: int, expected_s: float
) -> None:
    made = {f"small {number}": each for number, each in enumerate(small)}
    made["hung"] = Steps(60, 1e6, expected_s, at=1.0, most=1)
    alone = begin_steps(made, until=600.0)
    made["large"] = Steps(demand, 1.0, at=2.0, most=1)
    beside = begin_steps(made, until=600.0)
    # A step that ends after the large one could begin waits until the hung one has run for as long.
    late = 1 + sum(each.expected_s / each.real_s for each in small)
    assert sum(map(len, beside.values())) >= sum(map(len, alone.values())) / 2 - late
