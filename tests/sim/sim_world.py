"""The simulated world: the unchanged core and planner between simulated managers, a client, a journal and bad luck."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from callsheet.scheduler.core.recovery import RequestDecoder, restore
from callsheet.scheduler.core.state.scheduler_state import CoreSettings, SchedulerState
from callsheet.scheduler.core.step import Stepper
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import CPU, ActionKey, ActionKind, TrajectoryResult
from callsheet.scheduler.core.words.records import Record
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.protocol import Planner

from tests.sim.sim_client import ClientLink, SimClient
from tests.sim.sim_manager import SimManager
from tests.sim.sim_parts import (
    Link,
    Timeline,
    action_request,
    encode_outcome,
    job_request,
    no_weights,
    trajectory_request,
)
from tests.support.core_invariants import check_invariants
from tests.support.core_journal import CoreJournal

SANDBOX_KINDS = frozenset({ActionKind.ENV_RESET, ActionKind.ENV_STEP, ActionKind.REWARD})
ENGINE_KINDS = frozenset({ActionKind.GENERATE})


@dataclass(frozen=True)
class Misfortune:
    """How often things go wrong, in events per second of virtual time, and how slow streams are, in seconds."""

    scheduler_crashes: float = 0.0
    manager_crashes: float = 0.0
    client_cuts: float = 0.0
    manager_cuts: float = 0.0
    client_absences: float = 0.0
    cancels: float = 0.0
    resubmits: float = 0.0
    failure_rate: float = 0.0
    slowness: float = 0.002
    commit_s: float = 0.005


class World:
    """Everything that is simulated. The same seed gives the same history."""

    def __init__(
        self,
        seed: int,
        misfortune: Misfortune,
        *,
        trajectories: int = 12,
        steps: int = 4,
        planner: Planner | None = None,
        settings: CoreSettings | None = None,
    ) -> None:
        self.settings = settings or CoreSettings(manager_lease=10.0, cancel_grace=5.0, orphan_lease=60.0)
        self.time = Timeline(seed)
        self.misfortune = misfortune
        self.slowness = misfortune.slowness
        self.failure_rate = misfortune.failure_rate
        self.journal = CoreJournal()
        self.scheduler_up = False
        self.starts: Counter[ActionKey] = Counter()
        self.managers = {
            manager_id: SimManager(self, manager_id, kinds, cores, self.starts, shared)
            for manager_id, kinds, cores, shared in (
                ("sandbox-1", SANDBOX_KINDS, 4, {}),
                ("sandbox-2", SANDBOX_KINDS, 2, {CPU: 2}),
                ("engine-1", ENGINE_KINDS, 0, {}),
            )
        }
        self.client = SimClient(self, trajectories, steps)
        self.planner: Planner = planner or FirstComePlanner()
        self._generation = 0
        self._uncommitted: list[Record] = []
        self._deferred: list[commands.CoreCommand] = []
        self._committing = False

    def run(self, until_s: float = 3600.0) -> None:
        """Plays the whole history, and then a quiet while in which everything must settle."""
        self._start_scheduler()
        for manager in self.managers.values():
            manager.start()
        self.client.start()
        self._plan_misfortunes()
        self.time.run(self.time.now + until_s, lambda: self.client.completed == self.client.trajectories)
        self.misfortune = Misfortune()
        self.time.run(self.time.now + 300.0, lambda: False)

    def _plan_misfortunes(self) -> None:
        names = sorted(self.managers)
        self._recurring("scheduler_crashes", self._crash_scheduler)
        self._recurring("manager_crashes", lambda: self._crash_manager(self.time.random.choice(names)))
        self._recurring("manager_cuts", lambda: self._cut_manager(self.time.random.choice(names)))
        self._recurring("client_cuts", self.client.cut)
        self._recurring("client_absences", self.client.leave)
        self._recurring("cancels", self.client.cancel_something)
        self._recurring("resubmits", self.client.resubmit_something)

    def _recurring(self, name: str, what: object) -> None:
        rate = getattr(self.misfortune, name)
        if not rate or not callable(what):
            return

        def strike() -> None:
            if getattr(self.misfortune, name):
                what()
                self._recurring(name, what)

        self.time.after(self.time.random.expovariate(rate), strike)

    def _start_scheduler(self) -> None:
        self._generation += 1
        self.journal.epoch += 1
        self.scheduler_up = True
        self.state = SchedulerState(self.journal.epoch, encode_outcome, self.settings)
        self._uncommitted, self._deferred, self._committing = [], [], False
        restore(
            self.state,
            self.journal.recovered(),
            RequestDecoder(job_request, trajectory_request, action_request, no_weights, TrajectoryResult),
            self.time.now,
        )
        check_invariants(self.state)
        self.stepper = Stepper(self.state, self.planner.plan)
        self._tick(self._generation)

    def _crash_scheduler(self) -> None:
        """kill -9: what is not committed is lost, all streams break."""
        if not self.scheduler_up:
            return
        self.scheduler_up = False
        self._generation += 1
        for manager in self.managers.values():
            manager.cut()
            self.time.after(0.5, manager.connect)
        self.client.cut()
        self.time.after(1.0, self._start_scheduler)

    def _crash_manager(self, manager_id: str) -> None:
        manager = self.managers[manager_id]
        if manager.alive:
            manager.kill()
            self.time.after(self.time.random.uniform(0.5, 20.0), manager.start)

    def _cut_manager(self, manager_id: str) -> None:
        manager = self.managers[manager_id]
        manager.cut()
        self.time.after(self.time.random.uniform(0.1, 15.0), manager.connect)

    def manager_link_lost(self, manager_id: str, link: Link) -> None:
        """The scheduler notices a broken stream a little later, or never if it is down."""
        generation = self._generation
        disconnected = events.ManagerDisconnected(link, manager_id)
        self.time.after(0.05, lambda: self._handle(generation, [disconnected]))

    def client_link_lost(self, link: ClientLink) -> None:
        """As `manager_link_lost`, for the client's."""
        generation = self._generation
        self.time.after(0.05, lambda: self._handle(generation, [events.SessionEnded(link)]))

    def to_scheduler(self, link: Link, event: events.Event) -> None:
        """Sends an event over a link."""
        generation = self._generation
        link.send("up", lambda: self._handle(generation, [event]))

    def _tick(self, generation: int) -> None:
        if generation == self._generation and self.scheduler_up:
            self._handle(generation, [])
            self.time.after(0.25, lambda: self._tick(generation))

    def _handle(self, generation: int, happened: Sequence[events.Event]) -> None:
        if generation != self._generation or not self.scheduler_up:
            return
        self.stepper.post(happened)
        todo = self.stepper.step(self.time.now).commands
        # Most ticks do nothing, and leave the books as they were looked at before.
        if happened or todo:
            check_invariants(self.state)
        while self.stepper.has_more:
            todo += self.stepper.step(self.time.now).commands
            check_invariants(self.state)
        for command in todo:
            if isinstance(command, commands.Persist):
                self._uncommitted.append(command.record)
            elif command.after_commit:
                self._deferred.append(command)
            else:
                self._carry_out(command)
        if (self._uncommitted or self._deferred) and not self._committing:
            self._committing = True
            self.time.after(self.misfortune.commit_s, lambda: self._commit(generation))

    def _commit(self, generation: int) -> None:
        if generation != self._generation:
            return
        self._committing = False
        batch, self._uncommitted = self._uncommitted, []
        deferred, self._deferred = self._deferred, []
        self.journal.alive_at = self.time.now
        self.journal.commit(batch)
        for command in deferred:
            self._carry_out(command)

    def _carry_out(self, command: commands.CoreCommand) -> None:
        match command:
            case commands.Accept(reply_to=reply_to):
                reply_to.session.put_result(reply_to.sequence, None)
            case commands.Refuse(reply_to=reply_to, refusal=refusal):
                reply_to.session.put_result(reply_to.sequence, refusal)
            case commands.Deliver(watchers=watchers, outcome=outcome):
                for watcher in watchers:
                    watcher.put_outcome(outcome)
            case commands.DeliverStored(watcher=watcher, key=key):
                if key in self.journal.outcomes:
                    watcher.put_outcome(self.journal.outcomes[key])
                else:
                    watcher.miss_outcome()
            case _:
                self._to_manager(command)

    def _to_manager(self, command: commands.CoreCommand) -> None:
        link = getattr(command, "session", None)
        manager = next((each for each in self.managers.values() if each.link is link and link is not None), None)
        if manager is None or link is None:
            return
        match command:
            case commands.Dispatch():
                link.send("down", lambda: manager.dispatch(command))
            case commands.AcceptManager():
                link.send("down", manager.registered)
            case commands.AcknowledgeEnd(token=token):
                link.send("down", lambda: manager.ends.pop(token, None))
            case commands.CancelAttempt(token=token):
                link.send("down", lambda: manager.cancel(token))
            case commands.ReleaseSandbox(sandbox=sandbox):
                link.send("down", lambda: manager.release(sandbox))
            case commands.RefuseManager():
                manager.cut()
                self.time.after(0.5, manager.connect)
