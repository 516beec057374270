"""The one loop that owns the core: events in, commands out."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
import structlog
from callsheet.scheduler.core.machine import next_deadline
from callsheet.scheduler.core.state.entities import FinishedAction
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.step import EndsListener, Stepper
from callsheet.scheduler.core.words import commands
from callsheet.scheduler.core.words.events import Event
from callsheet.scheduler.core.words.model import ActionKey
from callsheet.scheduler.core.words.records import ActionFinished, JobClosed, Record
from callsheet.scheduler.planner.protocol import Planner
from callsheet.scheduler.service.background import Background
from callsheet.scheduler.service.opening_jobs import HeldDispatches
from callsheet.scheduler.service.sessions import ManagerStream
from callsheet.scheduler.store.writer import GroupCommitWriter
from callsheet.scheduler.web.tally import Tally
from callsheet.v1 import common_pb2

MAX_PENDING_EVENTS = 50_000
MAX_PENDING_BYTES = 256 * 1024 * 1024
MAX_STORED_READS = 10_000
IDLE_WAIT = 3600.0
# Seconds that the acknowledgement of a submit may wait for company in its commit: as long as a short action takes.
COMMIT_DELAY = 0.01
# The journal works off its backlog without telling anybody.
ROOM_POLL = 0.1
# A loop that is back so much later than it had to be was stopped, or starved of its processor.
STALL_S = 1.0
# A scheduler that committed nothing for so many seconds may have been stopped, and another one may lead by now. It
# sends nothing before a commit, which checks its epoch. A leader's lease must be longer.
PROOF_S = 1.0
# It goes on while the machine sleeps.
_PROOF_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock:
    """Wall-clock seconds that never go back."""

    def __init__(self) -> None:
        self._offset = time.time() - time.monotonic()

    def now(self) -> float:
        """Seconds since the epoch."""
        return time.monotonic() + self._offset


@dataclass(slots=True)
class _Committable:
    """Records of one step to commit, and the commands that wait for them.

    Attributes:
        records: For the journal.
        deferred: What is carried out once they are committed.
        urgent: Whether somebody waits for one of these: for an outcome, or for the answer to what is no submit.
        sent_ahead: Whether the step had commands that wait for no commit.
        since: When the journal got it, in seconds of the proof's clock.
    """

    records: list[Record] = field(default_factory=list)
    deferred: list[commands.CoreCommand] = field(default_factory=list)
    urgent: bool = False
    sent_ahead: bool = False
    since: float = 0.0


class CoreLoop:
    """Feeds the core and carries out its commands. Everything here runs on the event loop; nothing blocks it."""

    def __init__(
        self,
        state: SchedulerState,
        planner: Planner,
        writer: GroupCommitWriter,
        background: Background,
        on_ends: EndsListener,
        *,
        stopwatch: Callable[[], float] = lambda: 0.0,
        tally: Tally | None = None,
        heartbeat_interval: float,
        max_journal_backlog: int,
        max_pending_bytes: int = MAX_PENDING_BYTES,
    ) -> None:
        self.state = state
        self.clock = Clock()
        self.tally = tally or Tally()
        # Told of each outcome that is committed, if anybody wants to know.
        self.on_finished: Callable[[ActionFinished], None] | None = None
        self.stepper = Stepper(state, planner.plan, on_ends, stopwatch)
        self._writer = writer
        self._background = background
        self._heartbeat_interval = heartbeat_interval
        self._max_journal_backlog = max_journal_backlog
        self._max_pending_bytes = max_pending_bytes
        self._wake = asyncio.Event()
        self._room: anyio.Event | None = None
        self._uncommitted = _Committable()
        self._held = HeldDispatches()
        # Commands that wait until this scheduler has proved that it leads, and since when.
        self._unproved: deque[tuple[float, commands.CoreCommand]] = deque()
        self._proved_at = -math.inf
        self._flush_timer: asyncio.TimerHandle | None = None
        self._commit_error: Exception | None = None
        self._back_by = self.clock.now()
        self._timers_from = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        # Bound here and not at import: logging is configured in between, and an unbound logger is slow.
        self._log = structlog.get_logger(__name__).bind()
        self._carriers: dict[type, Callable[[Any], None]] = {
            commands.Accept: self._accept,
            commands.Refuse: self._refuse,
            commands.Deliver: self._deliver,
            commands.DeliverStored: self._deliver_stored,
            commands.GiveBatch: self._give_batch,
            commands.ReleasePayloads: self._release_payloads,
            commands.AcceptManager: self._accept_manager,
            commands.RefuseManager: self._refuse_manager,
            commands.Dispatch: self._dispatch,
        }

    def post(self, happened: Sequence[Event]) -> None:
        """Queues events. Readers of streams call `wait_for_room` first; all else is small."""
        self.stepper.post(happened)
        self._wake.set()

    def wake(self) -> None:
        """Asks for another step, and so for another planning round."""
        self._wake.set()

    def has_outcome(self, key: common_pb2.ActionKey) -> bool:
        """Returns whether an action of an open job has its outcome."""
        return isinstance(self.state.find_action(ActionKey(key.job_id, key.action_id)), FinishedAction)

    async def wait_for_room(self) -> None:
        """Waits until the core and the journal keep up, so that a flood stays in its client's stream."""
        while not self._has_room:
            self._room = self._room or anyio.Event()
            with anyio.move_on_after(ROOM_POLL):
                await self._room.wait()

    @property
    def _has_room(self) -> bool:
        return (
            len(self.stepper.pending) <= MAX_PENDING_EVENTS
            and self.stepper.pending_bytes + self._writer.backlog_bytes <= self._max_pending_bytes
            and self._writer.backlog + len(self._unproved) <= self._max_journal_backlog
            and self._background.backlog <= MAX_STORED_READS
        )

    async def run(self) -> None:
        """Runs until cancelled."""
        on_loop = asyncio.get_running_loop()
        while True:
            if self.stepper.has_more:
                # Sockets are served between steps, however many events are waiting.
                await anyio.lowlevel.checkpoint()
            else:
                self._set_timer(on_loop)
                await self._wake.wait()
            if self._commit_error is not None:
                raise self._commit_error
            self._wake.clear()
            committable = self.step()
            if committable.sent_ahead:
                # What is to be dispatched leaves first: the journal's thread would compete with it for the interpreter.
                on_loop.call_soon(self._commit, committable)
            else:
                self._commit(committable)

    def _set_timer(self, on_loop: asyncio.AbstractEventLoop) -> None:
        """Has the next deadline wake the loop. A timer for an earlier one stays: most deadlines are dropped."""
        now = self._look_at_clock()
        deadline = next_deadline(self.state)
        at = now + IDLE_WAIT if deadline is None else max(deadline, self._timers_from, now)
        if self._timer is None or at < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer, self._timer_at = on_loop.call_later(at - now, self._timer_over), at
        self._back_by = max(self._timer_at, now)

    def _timer_over(self) -> None:
        self._timer = None
        self._wake.set()

    def _look_at_clock(self) -> float:
        """Now. While the loop was stopped it heard nobody, so for as long deadlines wait, a manager's lease at most.

        What was said meanwhile is still in the sockets: ends of attempts, and the heartbeats that renew leases.
        """
        now = self.clock.now()
        late = now - self._back_by
        if late > STALL_S:
            self._timers_from = now + min(late, self.state.settings.manager_lease)
            self._log.warning("loop_stalled", seconds=round(late, 3))
        self._back_by = now
        return now

    def step(self) -> _Committable:
        """Steps, and carries out the commands that wait for no commit."""
        done = self.stepper.step(self._look_at_clock(), timers_from=self._timers_from)
        committable = self._carry_out(done.commands)
        if self.stepper.has_more:
            self._wake.set()
        if self._room is not None:
            self._room.set()
            self._room = None
        return committable

    def _carry_out(self, todo: Sequence[commands.CoreCommand]) -> _Committable:
        committable = _Committable()
        now = time.clock_gettime(_PROOF_CLOCK)
        for command in todo:
            if type(command) is commands.Persist:
                committable.records.append(command.record)
                self._held.persists(command.record)
            elif command.after_commit or self._held.holds(command):
                committable.deferred.append(command)
                committable.urgent = committable.urgent or type(command) is not commands.Accept or not command.patient
            elif self._unproved or now - self._proved_at > PROOF_S:
                self._unproved.append((now, command))
                committable.urgent = True
            else:
                committable.sent_ahead = True
                self._carry_out_one(command)
        return committable

    def _commit(self, committable: _Committable) -> None:
        """Hands a step over to the journal: at once if somebody waits for it, else within `COMMIT_DELAY`.

        A short action's submit and outcome then share a commit instead of the outcome waiting for two.
        """
        self._uncommitted.records += committable.records
        self._uncommitted.deferred += committable.deferred
        if committable.urgent:
            self._flush()
        elif self._flush_timer is None and (committable.records or committable.deferred):
            self._flush_timer = asyncio.get_running_loop().call_later(COMMIT_DELAY, self._flush)

    def _flush(self) -> None:
        """An error of a callback would only be logged, and its records missing from the journal: `run` raises it."""
        if self._flush_timer is not None:
            self._flush_timer.cancel()
            self._flush_timer = None
        committable, self._uncommitted = self._uncommitted, _Committable()
        committable.since = time.clock_gettime(_PROOF_CLOCK)
        try:
            self._writer.submit(committable.records, lambda: self._after_commit(committable))
        except Exception as error:
            self._commit_error = error
            self._wake.set()

    def _after_commit(self, committable: _Committable) -> None:
        self._proved(committable.since)
        for command in committable.deferred:
            self._carry_out_one(command)
            self._held.carried_out(command)
        for record in committable.records:
            self._held.committed(record)
            if self.on_finished is not None and type(record) is ActionFinished:
                self.on_finished(record)
            if type(record) is JobClosed:
                self._log.info("job_closed", job_id=record.job_id, reason=record.reason)
                self._background.release_payloads(record.job_id)

    def _proved(self, since: float) -> None:
        """Notes a commit that began after `since`: this scheduler led then. Sends what waits for the proof of it.

        What was committed is sent even if the process was stopped right after the commit: the next leader knows it from
        the journal, and a manager that registered there refuses dispatches of an earlier epoch.
        """
        self._proved_at = max(self._proved_at, since)
        is_fresh = time.clock_gettime(_PROOF_CLOCK) - since <= PROOF_S
        while self._unproved and (is_fresh or self._unproved[0][0] <= since):
            _, command = self._unproved.popleft()
            self._carry_out_one(command)

    def _carry_out_one(self, command: commands.CoreCommand) -> None:
        self._carriers.get(type(command), self._tell_manager)(command)

    def _accept(self, command: commands.Accept) -> None:
        if command.reply_to.told is not None:
            command.reply_to.told(None)
        session, sequence = command.reply_to.session, command.reply_to.sequence
        if command.opened is None:
            session.put_result(sequence, None)
        else:
            session.put_opened(sequence, command.opened)

    def _refuse(self, command: commands.Refuse) -> None:
        if command.reply_to.told is not None:
            command.reply_to.told(command.refusal)
        command.reply_to.session.put_result(command.reply_to.sequence, command.refusal)

    def _deliver(self, command: commands.Deliver) -> None:
        for watcher in command.watchers:
            watcher.put_outcome(command.outcome)

    def _deliver_stored(self, command: commands.DeliverStored) -> None:
        self._background.deliver_stored(command.watcher, command.key)

    def _give_batch(self, command: commands.GiveBatch) -> None:
        command.taker.put_batch(command.job_id, command.batch_id)

    def _release_payloads(self, command: commands.ReleasePayloads) -> None:
        self._background.release_some(command.job_id, command.payloads)

    def _accept_manager(self, command: commands.AcceptManager) -> None:
        if isinstance(command.session, ManagerStream):
            lease = self.state.settings.manager_lease
            command.session.put_registered(self.state.epoch, self._heartbeat_interval, lease, command.shared_cores)
            self._log.info("manager_registered", manager=command.session.manager_id)

    def _refuse_manager(self, command: commands.RefuseManager) -> None:
        if isinstance(command.session, ManagerStream):
            command.session.outbox.close(command.refusal)

    def _dispatch(self, command: commands.Dispatch) -> None:
        request = command.request
        if isinstance(command.session, ManagerStream):
            command.session.put_command(command)
            self._log.debug(
                "dispatched",
                job_id=request.key.job_id,
                trajectory_id=request.trajectory_id,
                action_id=request.key.action_id,
                attempt=command.attempt,
                manager=command.session.manager_id,
            )

    def _tell_manager(self, command: commands.ManagerCommand) -> None:
        # A session that went away in the meantime is no loss: the manager's next registration settles it.
        if isinstance(command.session, ManagerStream):
            command.session.put_command(command)
