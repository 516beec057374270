"""The service and the simulator decide alike, given the same events and answers of the solver.

A simulation is recorded: its events, the answers of the solver, the pauses that ended, and the commands of each step.
The recording is then played to the service's loop, step by step.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from callsheet.benchmarks.simulator.policies.callsheet import Callsheet
from callsheet.benchmarks.simulator.shell.core_loop import TRUSTING, VirtualCoreLoop, encode_outcome
from callsheet.benchmarks.simulator.shell.prediction import Knowledge
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.managers.sandbox.settings import CoreSharing
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.step import MAX_EVENTS_PER_STEP, Step, Stepper
from callsheet.scheduler.core.words.commands import CoreCommand, Dispatch
from callsheet.scheduler.core.words.events import Event
from callsheet.scheduler.planner.conversation import SolverConversation
from callsheet.scheduler.planner.elastic import ElasticPlanner, ElasticSettings
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.round.snapshot import Snapshot
from callsheet.scheduler.planner.solvers.cp_sat import Budget
from callsheet.scheduler.planner.solvers.solve import Solution
from callsheet.scheduler.service import loop as service_loop
from callsheet.scheduler.service.planning import SolverPlanning

from tests.support.simulated import random_scenario
from tests.support.unattached import NoBackground, NoWriter

# Rewards then compete for cores in widths that leave something to decide.
WHOLE_CORES = CallsheetSettings(core_sharing=CoreSharing.RESERVED)


@dataclass(frozen=True)
class Stepped:
    """A step: when it was, how many events waited before it, and what it wanted done."""

    now: float
    waiting: int
    commands: list[CoreCommand]


class PauseOver:
    """The pause after an answer ended."""


@dataclass
class Recording:
    """All that a core was told from outside, and its steps, in order."""

    log: list[Event | Solution | PauseOver | Stepped] = field(default_factory=list)

    def note_steps(self, patches: pytest.MonkeyPatch) -> None:
        """Notes the steps of every core from now on."""
        real = Stepper.step

        def step(stepper: Stepper, now: float, *, timers_from: float = 0.0) -> Step:
            waiting = len(stepper.pending)
            done = real(stepper, now, timers_from=timers_from)
            self.log.append(Stepped(now, waiting, list(done.commands)))
            return done

        patches.setattr(Stepper, "step", step)

    def note_what_is_told(self, patches: pytest.MonkeyPatch) -> None:
        """Notes what the simulator's loop and its conversation are told from now on."""
        post, answered, resume = VirtualCoreLoop.post, SolverConversation.answered, SolverConversation.resume

        def noted_event(loop: VirtualCoreLoop, event: Event) -> None:
            self.log.append(event)
            post(loop, event)

        def noted_answer(conversation: SolverConversation, question: Snapshot, solution: Solution) -> None:
            self.log.append(solution)
            answered(conversation, question, solution)

        def noted_end_of_pause(conversation: SolverConversation) -> None:
            self.log.append(PauseOver())
            resume(conversation)

        patches.setattr(VirtualCoreLoop, "post", noted_event)
        patches.setattr(SolverConversation, "answered", noted_answer)
        patches.setattr(SolverConversation, "resume", noted_end_of_pause)

    @property
    def steps(self) -> list[Stepped]:
        """The steps alone."""
        return [each for each in self.log if isinstance(each, Stepped)]


class SetClock(service_loop.Clock):
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> float:
        """See `Clock.now`."""
        return self.at


class Service:
    """The service's loop and planning with the simulator's settings; the test answers what the solver is asked."""

    def __init__(self, seed: int) -> None:
        knowledge = Knowledge()
        settings = ElasticSettings(budget=Budget(deterministic=True), seed=seed)
        self.planning = SolverPlanning(ElasticPlanner(settings, knowledge.predictors), FirstComePlanner())
        self.loop = service_loop.CoreLoop(
            SchedulerState(1, encode_outcome, TRUSTING),
            self.planning,
            NoWriter(),
            NoBackground(),
            knowledge.attempts_ended,
            heartbeat_interval=3.0,
            max_journal_backlog=1000,
        )
        self.clock = self.loop.clock = SetClock()

    def play(self, happened: Event | Solution | PauseOver | Stepped) -> None:
        """Tells the loop what a recording says, or lets it step."""
        match happened:
            case Stepped(now=now):
                self.clock.at = now
                self.loop.step()
            case PauseOver():
                self.planning.conversation.resume()
            case Solution():
                question = self.planning.conversation.take_question()
                assert question is not None, "the simulator had asked the solver something by now"
                self.planning.conversation.answered(question, happened)
            case _:
                self.loop.post([happened])


def test_the_service_decides_as_the_simulator_did(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = random_scenario(3, trajectories=150, cores=8, turns=3)
    simulated, served = Recording(), Recording()
    with monkeypatch.context() as patches:
        simulated.note_steps(patches)
        simulated.note_what_is_told(patches)
        simulate(scenario, lambda world: Callsheet(world, WHOLE_CORES))
    with monkeypatch.context() as patches:
        served.note_steps(patches)
        patches.setattr(service_loop, "STALL_S", float("inf"))
        service = Service(scenario.seed)
        for happened in simulated.log:
            service.play(happened)
    assert max(step.waiting for step in simulated.steps) > MAX_EVENTS_PER_STEP, "it takes several steps"
    assert any(isinstance(each, Solution) for each in simulated.log), "the solver has something to decide"
    assert any(isinstance(each, Dispatch) for step in simulated.steps for each in step.commands)
    for simulated_step, served_step in zip(simulated.steps, served.steps, strict=True):
        assert served_step == simulated_step
