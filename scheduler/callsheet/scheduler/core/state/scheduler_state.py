"""The scheduler's state: what the core knows. `machine` changes it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Final, Literal

from callsheet.scheduler.core.state.announced_managers import Awaited, ExpectedRole, LostManager
from callsheet.scheduler.core.state.chores import Chores
from callsheet.scheduler.core.state.entities import Action, Attempt, FinishedAction, Job, Manager, Trajectory
from callsheet.scheduler.core.state.held_memory import HeldMemory
from callsheet.scheduler.core.state.ledger import Node
from callsheet.scheduler.core.state.orphans import Orphan
from callsheet.scheduler.core.state.quotas import TokenBucket
from callsheet.scheduler.core.state.ready import ReadyQueue
from callsheet.scheduler.core.state.set_up_index import SetUpIndex
from callsheet.scheduler.core.state.summaries import Summaries
from callsheet.scheduler.core.words.commands import Accept, CoreCommand, OutcomeFacts, Persist
from callsheet.scheduler.core.words.costs import Account, Cost
from callsheet.scheduler.core.words.engine_weights import WeightsRollout
from callsheet.scheduler.core.words.events import ReplyTo
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, Demand, Opened, Token, TrajectoryKey
from callsheet.scheduler.core.words.records import Record
from callsheet.timing.deadlines import Deadlines

TimerKey = (
    tuple[Literal["action", "backoff", "orphan"], ActionKey]
    | tuple[Literal["attempt"], Token]
    | tuple[Literal["trajectory"], TrajectoryKey]
    | tuple[Literal["batch", "group"], tuple[str, str]]
    | tuple[Literal["job", "idle", "manager", "drain", "rollout"], str]
    | tuple[Literal["retention", "round", "returns"], Literal[""]]
)
"""Key of a deadline: its kind and its owner."""

MOST_CHANGED_NODES: Final = 4096
"""Nodes that are remembered because their managers changed, at most."""

OutcomeEncoder = Callable[[OutcomeFacts], bytes]
"""Encodes what is known of a finished action, as clients get it and the journal keeps it. Must not fail or block."""


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Bounds of the core; times in seconds.

    Attributes:
        max_open_actions: Actions without an outcome; beyond it submits are refused with RESOURCE_EXHAUSTED.
        max_open_bytes: Likewise bytes of their bodies; and bytes of the specs of open trajectories and jobs.
        max_job_open_actions: Likewise actions of one job, which may ask for fewer.
        max_job_open_bytes: Likewise bytes of one job.
        max_open_jobs: Open jobs; beyond it no more are opened.
        max_open_trajectories: Likewise open trajectories of all jobs.
        max_job_open_trajectories: Likewise of one job.
        max_orphan_bytes: Results of attempts whose actions are unknown; of those beyond it only the end is kept.
        full_retry_after: What such a refusal says about when to try again.
        manager_lease: Silence after which a manager is lost.
        cancel_grace: How long a manager may take to end an attempt it was told to stop.
        timeout_grace: How long past its execution timeout an attempt may stay silent.
        orphan_lease: How long an attempt without a known action waits for its submit.
        expected: Managers that were announced: what only they may serve waits until they have registered once.
        closed_actions: Most actions of closed jobs of which a summary is kept.
        closed_actions_s: How long it is kept after the close.
        finished_actions: Most actions of open jobs that have their outcome and are kept, closed trajectories included.
        finished_actions_bytes: Most bytes of these outcomes, and of what is kept of these trajectories.
        finished_actions_s: How long they are kept.
        job_grace: How long a job that says nothing else lives on without a client session, until it expires.
        expired_job_lifetime: How long an expired job stays open without a client session.
        job_idle_timeout: How long a job that says nothing else, and is not detached, stays open without work.
        max_buffered: Finished trajectories in the buffer of a job that says nothing else, from which on no more begin.
    """

    max_open_actions: int = 1_000_000
    max_open_bytes: int = 1 << 30
    max_job_open_actions: int = 500_000
    max_job_open_bytes: int = 1 << 29
    max_open_jobs: int = 10_000
    max_open_trajectories: int = 200_000
    max_job_open_trajectories: int = 100_000
    max_orphan_bytes: int = 1 << 28
    full_retry_after: float = 1.0
    manager_lease: float = 15.0
    cancel_grace: float = 15.0
    timeout_grace: float = 30.0
    orphan_lease: float = 120.0
    expected: tuple[ExpectedRole, ...] = ()
    closed_actions: int = 10_000
    closed_actions_s: float = 3600.0
    finished_actions: int = 500_000
    finished_actions_bytes: int = 4 << 30
    finished_actions_s: float = 24 * 3600.0
    job_grace: float = 120.0
    expired_job_lifetime: float = 24 * 3600.0
    job_idle_timeout: float = 7 * 24 * 3600.0
    max_buffered: int = 4096


class SchedulerState:
    """Jobs, trajectories, actions, attempts, managers and nodes. `machine` changes it; others read it.

    Attributes:
        epoch: Of its tokens: how many schedulers there were before it, and this one.
        settings: Its bounds.
        encode_outcome: See there.
        jobs: The open ones, by id.
        rollouts: The newest weights of services that open jobs published, by the service.
        managers: The registered ones, by id; also one whose stream is down while its lease runs.
        lost_managers: Those that were given up and have not registered again, by id, the newest last.
        awaited: What was on managers before a restart that have not registered since, by their ids.
        engines: Registered managers with engines of a service, by its name and their ids.
        expected: Announced roles of which no manager has registered yet.
        awaits_returns: Whether a restart is less than a manager's lease ago. What no registered manager serves may have
            been served before, by one that comes back still: until then it waits.
        nodes: Those of registered managers, by id.
        metered_nodes: Those with quotas; `machine.handle` brings these up to now.
        buckets: The quotas by node id and resource, for nodes that come back.
        restored_at: When it continued from the journal of an earlier scheduler; None if there was none.
        away_s: How long there was no scheduler before, as far as it concerns an action that was restored.
        attempts: Those that have not ended, by token; also one that has lost its action and holds its units still.
        elastic_attempts: Those with cores of their own of which plans may take some for others.
        narrowed_attempts: Those among them that have given some.
        orphans: Attempts of actions that nobody knows, by the action; `adoption` changes it.
        orphan_bytes: Bytes of their results, and of what they take besides.
        kept_set_ups: The set-ups that managers keep.
        ready: Actions that could start now.
        waiting_trajectories: Those that wait for admission, by job and trajectory id, in the order in which their first
            actions came. A job without any has no entry.
        timers: When to look after what.
        chores: What is done in parts, over many steps.
        open_actions: How many actions have no outcome yet.
        open_trajectories: How many trajectories are open, or closed and not over; see `Job`.
        open_bytes: Bytes of the bodies of these actions.
        spec_bytes: Bytes of the specs of these trajectories and of all open jobs.
        finished_actions: How many actions of open jobs have their outcome and are kept.
        closed_trajectories: How many closed trajectories of open jobs are over and kept.
        finished_bytes: Bytes of these outcomes, and of what is kept of these trajectories.
        servable_cache: Whether any registered manager can ever serve a kind, a service's name and a demand.
        service_demands: What an action takes at least, by the name of its service.
        held_memory: What sandboxes held in their lives.
        spent: What attempts cost since the scheduler's start, by their kind.
        resting: What sandboxes cost since then between their commands.
        grown: Jobs and trajectories of which the journal does not have the cost of this step yet.
        fleet_version: Grows whenever managers come, go, begin or end taking attempts, or are found to go by need.
        summaries: What stays of actions that have their outcome.
    """

    def __init__(
        self,
        epoch: int,
        encode_outcome: OutcomeEncoder,
        settings: CoreSettings | None = None,
    ) -> None:
        """Starts empty.

        Args:
            epoch: Of its tokens.
            encode_outcome: See there.
            settings: Its bounds.
        """
        self.epoch = epoch
        self.settings = settings or CoreSettings()
        self.encode_outcome = encode_outcome
        self.jobs: dict[str, Job] = {}
        self.rollouts: dict[str, WeightsRollout] = {}
        self.managers: dict[str, Manager] = {}
        self.lost_managers: dict[str, LostManager] = {}
        self.engines: dict[str, dict[str, Manager]] = {}
        self.awaited: dict[str, Awaited] = {}
        self.expected = self.settings.expected
        self.awaits_returns = False
        self.nodes: dict[str, Node] = {}
        self.metered_nodes: dict[str, Node] = {}
        self.buckets: dict[tuple[str, str], TokenBucket] = {}
        self.restored_at: float | None = None
        self.away_s = 0.0
        self.attempts: dict[Token, Attempt] = {}
        self.elastic_attempts: dict[Token, Attempt] = {}
        self.narrowed_attempts: dict[Token, Attempt] = {}
        self.orphans: dict[ActionKey, Orphan] = {}
        self.orphan_bytes = 0
        self.kept_set_ups = SetUpIndex()
        self.service_demands: dict[str, Demand] = {}
        self.ready = ReadyQueue(self.kept_set_ups, self.service_demands)
        self.waiting_trajectories: dict[str, dict[str, Trajectory]] = {}
        self.timers: Deadlines[TimerKey] = Deadlines()
        self.chores = Chores()
        self.open_actions = 0
        self.open_trajectories = 0
        self.open_bytes = 0
        self.spec_bytes = 0
        self.finished_actions = 0
        self.closed_trajectories = 0
        self.finished_bytes = 0
        self.servable_cache: dict[tuple[ActionKind, str, Demand], bool] = {}
        self.held_memory = HeldMemory()
        self.spent: dict[ActionKind, Cost] = {kind: Cost() for kind in ActionKind}
        self.resting = Account()
        self.grown: dict[Job, dict[str, Trajectory]] = {}
        self.fleet_version = 0
        self._changed_nodes: deque[Node] = deque(maxlen=MOST_CHANGED_NODES)
        self._sequence = 0
        self._arrivals = 0
        self._commands: list[CoreCommand] = []
        self.summaries = Summaries(self.settings.closed_actions, self.settings.closed_actions_s)

    @property
    def wants_plan(self) -> bool:
        """True if there is anything that a planning round could decide."""
        return bool(len(self.ready) or self.waiting_trajectories or self.narrowed_attempts)

    def take_commands(self) -> list[CoreCommand]:
        """Returns the commands that were added since the last time."""
        todo, self._commands = self._commands, []
        return todo

    def emit(self, command: CoreCommand) -> None:
        """Adds a command to what `machine.handle` returns."""
        self._commands.append(command)

    def persist(self, record: Record) -> None:
        """Adds a record for the journal."""
        self._commands.append(Persist(record))

    def accept(self, reply_to: ReplyTo, *, patient: bool = False, opened: Opened | None = None) -> None:
        """Adds the acknowledgement of a request; see `Accept`."""
        self._commands.append(Accept(reply_to, patient, opened))

    def next_token(self) -> Token:
        """A token greater than all before it."""
        self._sequence += 1
        return Token(self.epoch, self._sequence)

    def newest_token(self) -> Token:
        """The greatest token that was given out."""
        return Token(self.epoch, self._sequence)

    def next_arrival(self) -> int:
        """The place of the next action in the order of arrival."""
        self._arrivals += 1
        return self._arrivals

    def find_action(self, key: ActionKey) -> Action | FinishedAction | None:
        """An action of an open job."""
        job = self.jobs.get(key.job_id)
        return job.actions.get(key.action_id) if job is not None else None

    def find_trajectory(self, job_id: str, trajectory_id: str) -> Trajectory | None:
        """An open trajectory."""
        job = self.jobs.get(job_id)
        return job.trajectories.get(trajectory_id) if job is not None else None

    def fleet_changed(self, node: Node) -> None:
        """Forgets what was derived from the registered managers: something of those on a node is not as it was."""
        self.fleet_version += 1
        self._changed_nodes.append(node)
        self.servable_cache.clear()

    def nodes_changed_since(self, version: int) -> list[Node] | None:
        """The nodes whose managers are not as they were at a `fleet_version`; None if they are not remembered."""
        count = self.fleet_version - version
        if version < 0 or count > len(self._changed_nodes):
            return None
        return list(dict.fromkeys(islice(reversed(self._changed_nodes), count)))[::-1]
