"""Whatever is lost, repeated, slow or dead: no engine is sent work for weights it has not proved, and all get there."""

from __future__ import annotations

from callsheet.scheduler.core.words import commands
from callsheet.scheduler.core.words.engine_weights import UpdateEnd, WeightsStanding, WeightsTold
from callsheet.scheduler.core.words.model import ActionKind
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.core_engines import POLICY, CoreEngine, offer
from tests.support.core_requests import action_request
from tests.support.core_world import CoreWorld
from tests.support.samples import examples

ENGINES = 3
QUIET_S = 400.0


class FaultyEngine(CoreEngine):
    """An engine that may restart unheard, and whose reports may be lost until its next heartbeat.

    Attributes:
        serving: Whether its manager lets generates begin.
        begun: The newest update that it has begun.
        unasked: Whether it came with first weights while others were published, and nobody told it to serve them.
    """

    def __init__(self, world: CoreWorld, manager_id: str) -> None:
        self.unasked = False
        self.truth = WeightsTold()
        self.begun: commands.UpdateWeights | None = None
        super().__init__(world, manager_id)

    def become(self, told: WeightsTold, *, heard: bool) -> None:
        """Has other weights now, and says so unless that is lost."""
        self.truth = told
        if heard:
            self.tell(told)

    def work(self, how: str, *, heard: bool) -> None:
        """Goes on with what it was told last: begins it, or ends it well or badly."""
        newest = self.updates[-1] if self.updates else None
        if self.truth.standing is WeightsStanding.UPDATING and self.begun is not None:
            self._end(self.begun, how, heard=heard)
        elif newest is not None and newest is not self.begun:
            self.begun = newest
            version = self.truth.version
            self.become(WeightsTold(WeightsStanding.UPDATING, version, updating=newest.update), heard=heard)

    def _end(self, update: commands.UpdateWeights, how: str, *, heard: bool) -> None:
        if how == "well" and not update.plan:
            self.unasked = False
            first = WeightsTold(WeightsStanding.INITIAL, 0, last_update=UpdateEnd(update.update))
            self.become(first, heard=heard)
        elif how == "well":
            self.unasked = False
            end = UpdateEnd(update.update, canary=f"answer of {update.version}".encode())
            proved = WeightsTold(WeightsStanding.PROVED, update.version, update.rollout, last_update=end)
            self.become(proved, heard=heard)
        else:
            end = UpdateEnd(update.update, failure="it went wrong")
            self.become(WeightsTold(WeightsStanding.UNPROVED, 0, reason="half", last_update=end), heard=heard)

    def restart_engine(self, *, heard: bool) -> None:
        """The engine alone restarts: its manager notices."""
        if self.truth.standing is WeightsStanding.PROVED:
            end = self.truth.last_update
            self.become(WeightsTold(WeightsStanding.UNPROVED, 0, reason="restarted", last_update=end), heard=heard)

    def restart_manager(self) -> None:
        """Another process of its manager, with an engine that has its first weights."""
        self.truth, self.begun = WeightsTold(), None
        self.rejoin(incarnation=f"{self.manager.incarnation}'")

    def reconnect(self) -> None:
        """Its stream breaks and comes again: all that was not heard is told in the registration."""
        self.manager.disconnect()
        self.told = self.truth
        self.rejoin()

    def move_to(self, world: CoreWorld) -> None:
        """Registers with another scheduler and says how it is."""
        self.told = self.truth
        super().move_to(world)

    def settle(self) -> None:
        """Says how it is and does at once what it is told."""
        self.tell(self.truth)
        for _ in range(4):
            self.work("well", heard=True)
        self.tell(self.truth)


class World:
    """A scheduler with engines, and what must hold at every step."""

    def __init__(self, *, expects_answer: bool, at_once: int) -> None:
        self.core = CoreWorld()
        self.at_once, self.expects_answer = at_once, expects_answer
        self.engines = [FaultyEngine(self.core, f"engine-{index}") for index in range(ENGINES)]
        self.core.job()
        self.version = 0
        self.actions = 0

    def step(self, what: str, which: int, *, heard: bool) -> None:
        """Lets one thing happen."""
        engine = self.engines[which]
        match what:
            case "publish":
                self.version += 1
                # After a restart it must be named.
                name, at_once = f"w{self.version}", self.at_once
                weights = offer(name, service=POLICY, at_once=at_once, expects_answer=self.expects_answer)
                self.core.publish(self.version, offer=weights)
            case "well" | "badly":
                engine.work(what, heard=heard)
            case "restart engine":
                engine.restart_engine(heard=heard)
            case "restart manager":
                engine.restart_manager()
                engine.unasked = self.version > 0
            case "heal":
                if self.core.state.managers[engine.manager.manager_id].accepting:
                    self.core.heal(engine.manager.manager_id)
            case "close job":
                self.core.close_job()
                self.version = 0
                for each in self.engines:
                    each.unasked = False
                self.core.job()
            case "reconnect":
                engine.reconnect()
            case "repeat":
                engine.tell(engine.truth)
            case "restart scheduler":
                self.core = self.core.restart()
                for each in self.engines:
                    each.move_to(self.core)
            case "generate":
                self._generate()
            case _:
                for each in self.engines:
                    each.manager.heartbeat()
                self.core.wait(5.0)
        busy = [each for each in self.engines if self._updating(each)]
        assert len(busy) <= self.at_once

    def _updating(self, engine: FaultyEngine) -> bool:
        """Whether it is out of service for a publish; one that is healed was out before."""
        weights = self.core.state.managers[engine.manager.manager_id].services["policy"].weights
        return weights.updating is not None and weights.rollout is not None

    def _generate(self) -> None:
        self.actions += 1
        name = f"a{self.actions}"
        self.core.submit(action_request(name, ActionKind.GENERATE))
        self.core.plan()
        for each in self.engines:
            if each.has(name):
                assert each.told.standing in (WeightsStanding.PROVED, WeightsStanding.INITIAL)
                old = each.told.standing is WeightsStanding.INITIAL and each.unasked
                assert not old, "it came back with its first weights"
                each.manager.run(name)

    def settle(self) -> None:
        """After a quiet while every engine serves the newest weights, or some that it may where there are none."""
        if self.version:
            # One that was healed waits for another publish.
            self.step("publish", 0, heard=True)
        for _ in range(int(QUIET_S / 5.0)):
            for each in self.engines:
                each.settle()
            self.core.wait(5.0)
        if self.version:
            assert {each.truth.version for each in self.engines} == {self.version}
        managers = self.core.state.managers.values()
        assert not any(manager.services["policy"].weights.gated for manager in managers)
        assert not len(self.core.state.ready)


WHAT = (
    *("publish", "well", "well", "well", "badly", "generate", "generate", "wait"),
    *("restart engine", "restart manager", "restart scheduler", "reconnect", "repeat", "close job", "heal"),
)
STEPS = st.tuples(
    st.sampled_from(WHAT),
    st.integers(0, ENGINES - 1),
    st.booleans(),
)


@settings(max_examples=examples(40))
@given(st.lists(STEPS, max_size=40), st.booleans(), st.integers(1, ENGINES))
def test_nothing_unproved_is_given_work_and_all_engines_get_there(
    steps: list[tuple[str, int, bool]], expects_answer: bool, at_once: int
) -> None:
    world = World(expects_answer=expects_answer, at_once=at_once)
    for what, which, heard in steps:
        world.step(what, which, heard=heard)
    world.settle()
