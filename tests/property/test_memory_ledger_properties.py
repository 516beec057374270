"""The ledger of a node's memory: nobody can be killed for others, and all come to their end, whatever grows."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

from callsheet.managers.sandbox.memory_ledger import MOST_PASSED, MemoryLedger, MemoryTerms, Stay
from hypothesis import given
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
            for name in self.ledger.advance():
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
def test_a_large_one_is_not_passed_for_ever(made: list[Trajectory], demand: int, random: Random) -> None:
    """Those that are there already may go on before it, but nobody new, so it goes once they have ended."""
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
        assert not any(each.at or each.runs for each in later), "nobody new passes it"


def test_one_that_waits_lets_others_pass_but_not_for_ever() -> None:
    ledger = MemoryLedger(1_000, by_need=True)
    for name, demand in (("large", 900), ("a", 100), ("b", 100), ("c", 100)):
        ledger.ask(name, demand, MemoryTerms())
        assert ledger.advance() == [name]
        ledger.rest(name, 10)
    ledger.thaw("a")
    assert ledger.advance() == ["a"]
    ledger.thaw("large")
    assert ledger.advance() == []
    running, resting = "a", ["b", "c"]
    for _ in range(MOST_PASSED):
        resting.append(running)
        ledger.thaw(resting[0])
        assert ledger.advance() == [resting[0]]
        ledger.rest(running, 10)
        running = resting.pop(0)
    ledger.thaw(resting[0])
    assert ledger.advance() == []
    ledger.rest(running, 10)
    assert ledger.advance() == ["large"]
