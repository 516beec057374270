"""A small world around `SchedulerState`: fake time, fake managers, and clients that note what they are told.

Everything a test does goes through `SchedulerState.handle`. After each step the invariants are checked, unless the
world is not `checked`: with thousands of trajectories that takes 50 ms a step. `plan` asks the planner and lets the
core carry out what it proposes. Nothing is planned unless a test says so or calls `run`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from callsheet.scheduler.core.machine import handle, next_deadline
from callsheet.scheduler.core.recovery import restore
from callsheet.scheduler.core.state.entities import Action, FinishedAction
from callsheet.scheduler.core.state.scheduler_state import CoreSettings, SchedulerState
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.commands import Cancellation, CoreCommand, Expiry, OutcomeFacts
from callsheet.scheduler.core.words.costs import Cost, held_for
from callsheet.scheduler.core.words.model import MEMORY, ActionKey, ActionKind, ActionState, FailureKind, JobRequest
from callsheet.scheduler.core.words.plan import Assignment, Plan
from callsheet.scheduler.core.words.registration import (
    NodeDescription,
    QuotaDescription,
    RunningAttempt,
    SandboxRef,
    ServiceDescription,
)
from callsheet.scheduler.planner.first_come import FirstComePlanner
from callsheet.scheduler.planner.protocol import ReviewingPlanner

from tests.support.core_clients import CoreClients
from tests.support.core_invariants import check_invariants
from tests.support.core_journal import CoreJournal
from tests.support.core_requests import action_request, key_of

ALL_KINDS = frozenset(ActionKind)
START = 1_000_000.0
SETTINGS = CoreSettings(manager_lease=10.0, cancel_grace=5.0, timeout_grace=2.0, orphan_lease=60.0)
C = TypeVar("C", bound=CoreCommand)


def service(
    name: str = "work",
    kinds: Iterable[ActionKind] = ALL_KINDS,
    *,
    slots: int = 0,
    reserved: dict[str, int] | None = None,
    shared: dict[str, int] | None = None,
    copies: bool = True,
    demand: dict[str, int] | None = None,
) -> ServiceDescription:
    """A hosted service."""
    reserved, shared, demand = reserved or {}, shared or {}, demand or {}
    return ServiceDescription(
        name, frozenset(kinds), slots, reserved, shared=shared, copies_sandboxes=copies, demand=demand
    )


def node(
    node_id: str,
    cores: int = 4,
    *,
    memory: int = 4096,
    quotas: Mapping[str, tuple[float, int]] | None = None,
    **capacity: int,
) -> NodeDescription:
    """A node with its cores in one NUMA node; `quotas` has units per second and burst."""
    limits = {name: QuotaDescription(*each) for name, each in (quotas or {}).items()}
    return NodeDescription(node_id, {MEMORY: memory, **capacity}, (tuple(range(cores)),), limits)


@dataclass(eq=False)
class Stream:
    """One stream of a manager, and what was sent over it."""

    manager_id: str = "m"
    sent: list[CoreCommand] = field(default_factory=list)

    def last(self, kind: type[C]) -> C:
        """The last command of a type."""
        return [command for command in self.sent if isinstance(command, kind)][-1]

    def all(self, kind: type[C]) -> list[C]:
        """All commands of a type."""
        return [command for command in self.sent if isinstance(command, kind)]


@dataclass(eq=False)
class FakeManager:
    """A manager that does what its test says."""

    world: CoreWorld
    manager_id: str
    node: NodeDescription
    services: tuple[ServiceDescription, ...]
    incarnation: str = "first"
    stream: Stream = field(default_factory=Stream)

    def join(
        self,
        running: Iterable[RunningAttempt] = (),
        sandboxes: Iterable[SandboxRef] = (),
        *,
        incarnation: str | None = None,
        heartbeat: bool = True,
    ) -> Stream:
        """Registers on a new stream; the first heartbeat follows unless the test wants to send it itself.

        The stream of another incarnation, which is another process, has broken before.
        """
        if incarnation not in (None, self.incarnation):
            self.disconnect()
        self.incarnation = incarnation or self.incarnation
        self.stream = Stream(self.manager_id)
        joined = events.ManagerJoined(
            self.stream,
            self.manager_id,
            self.incarnation,
            self.node,
            self.services,
            tuple(running),
            tuple(sandboxes),
        )
        self.world.handle(joined)
        if heartbeat:
            self.heartbeat()
        return self.stream

    def heartbeat(self) -> None:
        """It is alive."""
        self.world.handle(events.ManagerHeartbeat(self.manager_id, self.stream))

    def disconnect(self) -> None:
        """Its stream breaks."""
        self.world.handle(events.ManagerDisconnected(self.stream, self.manager_id))

    def live(self, seconds: float) -> None:
        """Is alive for a while, with a heartbeat every second."""
        until = self.world.now + seconds
        while self.world.now < until:
            self.heartbeat()
            self.world.wait(min(1.0, until - self.world.now))

    def grant(self, action: str | ActionKey) -> commands.Dispatch:
        """The last dispatch of an action on the present stream."""
        grants = [each for each in self.stream.all(commands.Dispatch) if each.request.key == key_of(action)]
        assert grants, f"{action} was not dispatched to {self.manager_id}; {self.world.why(action)}"
        return grants[-1]

    def has(self, action: str | ActionKey) -> bool:
        """Whether an action was dispatched on the present stream."""
        return any(each.request.key == key_of(action) for each in self.stream.all(commands.Dispatch))

    def start(self, action: str | commands.Dispatch) -> commands.Dispatch:
        """Begins an attempt."""
        grant = self.grant(action) if isinstance(action, str) else action
        self.world.handle(events.AttemptStarted(self.manager_id, grant.token))
        return grant

    def progress(self, action: str, execution_s: float | None = None) -> None:
        """Says that an attempt is alive, and how far its execution clock is."""
        self.world.handle(events.AttemptProgressed(self.manager_id, self.grant(action).token, execution_s))

    def end(
        self,
        action: str | commands.Dispatch,
        result: events.AttemptResult | None = None,
        *,
        started: bool = True,
        execution_s: float = 0.0,
        waited_s: Mapping[str, float] | None = None,
        held_mib: int = 0,
        cost: Cost | None = None,
    ) -> commands.Dispatch:
        """Ends an attempt, well unless told otherwise; a reset makes the sandbox named after its action and attempt."""
        grant = self.grant(action) if isinstance(action, str) else action
        end = ended(self.manager_id, grant, result, started=started)
        end.execution_s, end.waited_s = execution_s or end.execution_s, waited_s or {}
        end.sandbox_held_mib, end.cost = held_mib, end.cost if cost is None else cost
        self.world.handle(end)
        return grant

    def fail(self, action: str, kind: FailureKind = FailureKind.INFRA, *, started: bool = True) -> None:
        """Ends an attempt in a failure."""
        self.end(action, events.AttemptFailed(kind, "made_to_fail"), started=started)

    def run(self, action: str, *, held_mib: int = 0) -> commands.Dispatch:
        """Runs an attempt from its start to its good end."""
        return self.end(self.start(action), held_mib=held_mib)

    def running(
        self,
        grant: commands.Dispatch,
        *,
        started: bool = True,
        execution_s: float | None = None,
    ) -> RunningAttempt:
        """An attempt as it is reported in a registration."""
        return RunningAttempt(
            grant.token,
            grant.request.key,
            grant.attempt,
            started,
            dict(grant.resources),
            grant.cores,
            grant.request.body_hash,
            execution_s,
        )

    @property
    def free(self) -> dict[str, int]:
        """Free units of its node."""
        return self.world.state.nodes[self.node.node_id].free


def sandbox_made_by(grant: commands.Dispatch) -> str:
    """The sandbox that a reset makes."""
    return f"{grant.request.key.action_id}#{grant.attempt}"


def ended(
    manager_id: str,
    grant: commands.Dispatch,
    result: events.AttemptResult | None = None,
    *,
    started: bool = True,
) -> events.AttemptEnded:
    """The end of an attempt."""
    if result is None and grant.request.kind is ActionKind.ENV_RESET:
        result = events.AttemptSucceeded(b"made", sandbox_made_by(grant), grant.request.trajectory_id)
    return events.AttemptEnded(
        manager_id,
        grant.token,
        grant.request.key,
        grant.attempt,
        result or events.AttemptSucceeded(b"done"),
        started,
        0.5,
        grant.request.body_hash,
        cost=cost_of(grant, 0.5) if started else Cost(),
    )


def cost_of(grant: commands.Dispatch, seconds: float) -> Cost:
    """What an attempt costs that executed so long and used one core for half of that."""
    cost = held_for(grant.resources, seconds)
    cost.used["cpu"] = seconds / 2
    return cost


class CoreWorld(CoreClients):
    """See the module's docstring."""

    def __init__(
        self,
        *,
        settings: CoreSettings = SETTINGS,
        planner: ReviewingPlanner | None = None,
        journal: CoreJournal | None = None,
        epoch: int = 1,
        now: float = START,
        checked: bool = True,
    ) -> None:
        super().__init__(journal or CoreJournal())
        self.now = now
        self.checked = checked
        self.planner: ReviewingPlanner = planner or FirstComePlanner(hold_after=5.0)
        self.settings = settings
        self.state = SchedulerState(epoch, self._encode, settings)
        self.outcomes: dict[ActionKey, OutcomeFacts] = {}
        self._facts: dict[ActionKey, OutcomeFacts] = {}
        self.delivered: list[tuple[object, ActionKey]] = []

    def _encode(self, facts: OutcomeFacts) -> bytes:
        """Keeps the facts until the outcome is delivered."""
        self._facts[facts.key] = facts
        return repr(facts.result).encode()

    # -- the core ---------------------------------------------------------------------------------------------------

    def handle(self, *happened: events.Event) -> list[CoreCommand]:
        """Lets things happen now and notes what comes of it."""
        todo = handle(self.state, happened, self.now)
        if self.checked:
            check_invariants(self.state)
        self.journal.alive_at = self.now
        self.journal.commit(command.record for command in todo if isinstance(command, commands.Persist))
        for command in todo:
            self._carry_out(command)
        return todo

    def _carry_out(self, command: CoreCommand) -> None:
        match command:
            case commands.Accept(reply_to=reply_to, opened=opened):
                self.answers[reply_to.sequence] = None
                if opened is not None:
                    self.opened[reply_to.sequence] = opened
            case commands.Refuse(reply_to=reply_to, refusal=refusal):
                self.answers[reply_to.sequence] = refusal
            case commands.Deliver(watchers=watchers, key=key):
                facts = self._facts[key]
                assert key not in self.outcomes, f"{key} has two outcomes: {self.outcomes[key]} and {facts}"
                self.outcomes[key] = facts
                self.delivered.extend((watcher, key) for watcher in watchers)
            case commands.DeliverStored(watcher=watcher, key=key):
                assert tuple(key) in self.journal.outcomes, f"{key} has no outcome in the journal"
                self.delivered.append((watcher, key))
            case commands.GiveBatch(taker=taker, job_id=job_id, batch_id=batch_id):
                taker.put_batch(job_id, batch_id)
            case commands.Persist():
                pass
            case _:
                if isinstance(stream := getattr(command, "session", None), Stream):
                    stream.sent.append(command)

    def plan(self) -> Plan:
        """Asks the planner once and carries its proposal out."""
        plan = self.planner.plan(self.state, self.now)
        self.handle(events.PlanReady(plan))
        return plan

    def propose(self, action: str, manager_id: str, **units: int) -> list[commands.Dispatch]:
        """Carries out a proposal that the test makes up."""
        todo = self.handle(events.PlanReady(Plan((Assignment(key_of(action), manager_id, units),))))
        return [command for command in todo if isinstance(command, commands.Dispatch)]

    def wait(self, seconds: float) -> None:
        """Lets time pass, with every deadline handled when it comes, and plans at the end."""
        until = self.now + seconds
        while (deadline := next_deadline(self.state)) is not None and deadline <= until:
            self.now = max(self.now, deadline)
            self.handle(events.TimerFired())
        self.now = until
        self.plan()

    def restart(self, journal: CoreJournal | None = None) -> CoreWorld:
        """Another scheduler that continues from this one's journal, or from an older copy of it."""
        journal = journal or self.journal
        world = CoreWorld(
            settings=self.settings,
            planner=self.planner,
            journal=journal,
            epoch=self.state.epoch + 1,
            now=self.now,
            checked=self.checked,
        )
        restore(world.state, journal.recovered(), journal.decoder, self.now)
        world.handle()
        return world

    # -- managers -----------------------------------------------------------------------------------------------------

    def manager(
        self,
        manager_id: str = "m",
        *services: ServiceDescription,
        on: NodeDescription | None = None,
        cores: int = 4,
        memory: int = 4096,
        join: bool = True,
    ) -> FakeManager:
        """A manager that serves every kind unless told otherwise, registered and accepting."""
        manager = FakeManager(
            self, manager_id, on or node(f"node-{manager_id}", cores, memory=memory), services or (service(),)
        )
        if join:
            manager.join()
        return manager

    # -- looking ------------------------------------------------------------------------------------------------------

    def live(self, action: str | ActionKey) -> Action:
        """An action without an outcome."""
        found = self.state.find_action(key_of(action))
        assert isinstance(found, Action), f"{action} is {found}"
        return found

    def state_of(self, action: str) -> ActionState:
        """The state of an action."""
        found = self.state.find_action(key_of(action))
        assert isinstance(found, Action | FinishedAction), f"{action} is unknown"
        return found.state

    def failure(self, action: str) -> events.AttemptFailed:
        """The failure an action ended in."""
        result = self.outcomes[key_of(action)].result
        assert isinstance(result, events.AttemptFailed), f"{action} ended as {result}"
        return result

    def cancellation(self, action: str) -> Cancellation:
        """The cancellation an action ended in."""
        result = self.outcomes[key_of(action)].result
        assert isinstance(result, Cancellation), f"{action} ended as {result}"
        return result

    def expiry(self, action: str) -> Expiry:
        """The deadline an action ended by."""
        result = self.outcomes[key_of(action)].result
        assert isinstance(result, Expiry), f"{action} ended as {result}"
        return result

    def story(self, action: str | ActionKey) -> list[tuple[float, str]]:
        """All that happened to an action of an open job, as (time, sentence)."""
        key = key_of(action)
        action_now = self.state.find_action(key)
        known = action_now if isinstance(action_now, Action) else self.state.summaries.of_open_job(key)
        return list(known.story) if known is not None else []

    def why(self, action: str | ActionKey) -> str:
        """The story of an action, for the messages of failed tests."""
        return "; ".join(f"{time - START:.1f} {event}" for time, event in self.story(action))


def world_with_job(
    request: JobRequest | None = None, *, settings: CoreSettings = SETTINGS, planner: ReviewingPlanner | None = None
) -> CoreWorld:
    """A world with a job, the default one unless another is given."""
    world = CoreWorld(settings=settings, planner=planner)
    world.job(request)
    return world


def world_with_manager(
    manager_id: str = "m",
    *services: ServiceDescription,
    on: NodeDescription | None = None,
    cores: int = 4,
    memory: int = 4096,
) -> tuple[CoreWorld, FakeManager]:
    """A world with the default job, and a manager as `CoreWorld.manager` makes it."""
    world = world_with_job()
    return world, world.manager(manager_id, *services, on=on, cores=cores, memory=memory)


def world_with_trajectory(*, manager: bool = True) -> tuple[CoreWorld, FakeManager]:
    """A world with a job, its trajectory "t", and a manager "m" (joined unless told otherwise)."""
    world = world_with_job()
    fake = world.manager("m", join=manager)
    world.trajectory("t")
    return world, fake


def world_with_sandbox() -> tuple[CoreWorld, FakeManager]:
    """As `world_with_trajectory`, and the trajectory has the sandbox "reset#1"."""
    world, manager = world_with_trajectory()
    world.reset("reset", plan=True)
    manager.run("reset")
    return world, manager


def world_with_call(action: str = "a") -> tuple[CoreWorld, FakeManager, commands.Dispatch]:
    """As `world_with_trajectory`, and the manager runs a tool call."""
    world, manager = world_with_trajectory()
    world.submit(action_request(action), plan=True)
    return world, manager, manager.start(action)


def world_with_step(action: str = "a") -> tuple[CoreWorld, FakeManager, commands.Dispatch]:
    """As `world_with_sandbox`, and the manager runs a step in the sandbox."""
    world, manager = world_with_sandbox()
    world.step(action, plan=True)
    return world, manager, manager.start(action)
