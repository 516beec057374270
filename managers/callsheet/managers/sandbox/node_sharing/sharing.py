"""The sharing of one node's cores. Pure: `now` is a parameter, in seconds, and never falls."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from itertools import count

from callsheet.managers.sandbox.node_sharing.command import KnownCommand, Lane, LaneChange
from callsheet.managers.sandbox.node_sharing.member import RunningCommand
from callsheet.managers.sandbox.node_sharing.queues import BackgroundQueue, ForegroundClaims, ForegroundQueue
from callsheet.managers.sandbox.node_sharing.rank import (
    NEW_LEVEL,
    OVERDUE_LEVEL,
    ageing,
    claim_rank,
    level_of,
    quantum_end,
)
from callsheet.managers.sandbox.node_sharing.settings import NodeSharingSettings
from callsheet.timing.deadlines import Deadlines

# A stall may begin just after a check that found progress, so that two checks bound it.
_CHECKS = 2
# All turns that end stalls take at most this part of the node.
_TURNS_PART = 0.02

_TINY = 1e-9
# Claims and turns are noticed this much late rather than early, when rounding would hide them.
_LATE_S = 1e-6
# A command that used less than was thought is reviewed again after this part of its clock, so that reviews stay few.
_REVIEW_PART = 0.1
_LEAST_USE = 0.25


def check_after_s(settings: NodeSharingSettings) -> float:
    """Returns after how many seconds in the background a command's progress is looked at."""
    return settings.max_stall_s / _CHECKS


def turn(cores: float, commands: int, settings: NodeSharingSettings) -> float:
    """Returns the CPU seconds of a turn that ends a stall: so short that all commands can have theirs in time."""
    return min(settings.quantum_s, _TURNS_PART * check_after_s(settings) * cores / commands)


class NodeSharing:
    """Chooses the commands of a node that are in the foreground.

    Commands are admitted until their predicted use fills the cores: by levels of attained CPU, and within a level first
    come, first served. The others stay runnable in the background. One of a lower level takes the place of one of a
    higher level at once; levels grow geometrically, so a command changes its lane few times. Every operation costs
    O(log n).

    A command whose rank, attained CPU - beta * wait, has fallen far enough is overdue. Commands that cannot be demoted,
    that are in their first quantum or that are overdue have a claim. Overdue ones are promoted at once as long as all
    claims fit the cores together. Where they do not, no bound could be kept for all, and serving overdue commands first
    would only delay those that are about to end: then they wait in their levels.

    So the slowdown of a command that may be demoted, (clock + wait) / clock, stays at most 1 + 1 / (beta * weight) as
    long as all claims fit the cores, commands use what is predicted, and reviews come when `next_review` asks for them.
    Whether or not claims fit, no command stays in the background for longer than `max_stall_s` without CPU, as far as
    the turns that end stalls can serve all that are due.
    """

    def __init__(self, cores: float, settings: NodeSharingSettings | None = None) -> None:
        """Args: cores: What commands share; more than 0.

        Raises:
            ValueError: `cores` is not more than 0.
        """
        if not (math.isfinite(cores) and cores > 0):
            raise ValueError(f"cores: {cores}: must be finite and more than 0")
        self._cores = cores
        self._settings = settings or NodeSharingSettings()
        self._limit = cores + self._settings.overfill + _TINY
        numbers = count(1)
        self._members: dict[Hashable, RunningCommand] = {}
        self._background = BackgroundQueue(numbers)
        self._displaceable = ForegroundQueue(numbers)
        self._claims = ForegroundClaims()
        self._foreground: int = 0
        self._use = 0.0
        self._reviews: Deadlines[Hashable] = Deadlines()
        self._due: dict[Hashable, None] = {}
        self._before: dict[Hashable, Lane | None] = {}
        self._now = -math.inf
        # The integral of min(1, cores / use of the foreground): a foreground that does not fit is charged less.
        self._granted = 0.0

    def __len__(self) -> int:
        return len(self._members)

    def lane(self, command_id: Hashable) -> Lane:
        """Returns a command's lane; KeyError if it does not run."""
        lane = self._members[command_id].lane
        assert lane is not None
        return lane

    def start(self, command: KnownCommand, now: float) -> list[LaneChange]:
        """Takes in a command.

        Returns:
            The lanes that change, its own included.

        Raises:
            ValueError: A command of this id runs already.
        """
        if command.command_id in self._members:
            raise ValueError(f"command_id: {command.command_id!r}: runs already")
        self._pass_time(now)
        use = min(command.predicted_use, self._cores)
        member = RunningCommand(command, ageing(use, self._settings), use, began=now)
        self._members[command.command_id] = member
        self._note(member)
        if command.demotable:
            self._put_background(member)
        else:
            self._put_foreground(member, NEW_LEVEL)
            self._make_room()
        self._admit()
        return self._changes()

    def end(self, command_id: Hashable, now: float) -> list[LaneChange]:
        """Lets go of a command that ended; KeyError if it does not run."""
        self._pass_time(now)
        self._leave(self._members.pop(command_id))
        self._due.pop(command_id, None)
        self._admit()
        self._before.pop(command_id, None)
        return self._changes()

    def resize(self, command_id: Hashable, predicted_use: float, now: float) -> list[LaneChange]:
        """Notes that a command will use so many cores from now on, more than 0. KeyError if it does not run."""
        self._pass_time(now)
        member = self._members[command_id]
        if member.lane is Lane.FOREGROUND:
            member.settle_foreground(self._granted)
            self._change_use(member, min(predicted_use, self._cores))
            self._make_room()
            self._admit()
        else:
            member.use = min(predicted_use, self._cores)
        return self._changes()

    def due(self, now: float) -> list[Hashable]:
        """Returns the commands whose CPU `measured` should be told now; the others' may be told as well."""
        for command_id in self._reviews.pop_due(now):
            self._due[command_id] = None
        return list(self._due)

    def next_review(self, now: float) -> float | None:
        """Returns when `measured` should be called next; None if nothing depends on time."""
        return now if self._due else self._reviews.next()

    def measured(self, attained: Mapping[Hashable, float], now: float) -> list[LaneChange]:
        """Takes CPU seconds that commands have attained since their start, and compares those that are due.

        Args:
            attained: By command; at least of those that are `due`. One that is missing is taken to be where it was
                expected, one that is not known is ignored.
            now: The time.
        """
        self._pass_time(now)
        due = self.due(now)
        self._due.clear()
        for command_id, attained_s in attained.items():
            if (member := self._members.get(command_id)) is not None:
                self._measure(member, attained_s)
        for command_id in due:
            self._review(self._members[command_id])
        self._admit()
        return self._changes()

    def execution_clock(self, command_id: Hashable, now: float) -> float:
        """Returns the seconds to charge: granted in the foreground, received in the background. KeyError if not here.

        In the background what was measured counts. Where the foreground does not fit the cores, a second counts for
        what a fair share of it was.
        """
        return self._members[command_id].clock(self._granted_at(now))

    def _pass_time(self, now: float) -> None:
        self._granted = self._granted_at(now)
        self._now = max(now, self._now)

    def _granted_at(self, now: float) -> float:
        passed = now - self._now
        return self._granted + passed * self._grant_rate() if 0.0 < passed < math.inf else self._granted

    def _grant_rate(self) -> float:
        return 1.0 if self._use <= self._cores else self._cores / self._use

    def _leave(self, member: RunningCommand) -> None:
        """Takes a command out of its lane."""
        self._note(member)
        self._reviews.drop(member.command.command_id)
        if member.lane is Lane.BACKGROUND:
            self._background.remove(member)
            member.overdue = False
            member.leave_background(self._now)
        elif member.lane is Lane.FOREGROUND:
            if member.displaceable:
                self._displaceable.remove(member)
            member.settle_foreground(self._granted)
            self._foreground -= 1
            self._use = self._use - member.use if self._foreground else 0.0
        member.lane = None
        self._claims.update(member)

    def _promote(self, member: RunningCommand, level: int) -> None:
        self._leave(member)
        self._put_foreground(member, level)

    def _demote(self, member: RunningCommand) -> None:
        self._leave(member)
        self._put_background(member)

    def _put_foreground(self, member: RunningCommand, level: int) -> None:
        member.lane, member.seen, member.stall_ends = Lane.FOREGROUND, self._granted, math.inf
        self._foreground += 1
        self._use += member.use
        self._begin_quantum(member, level)

    def _put_background(self, member: RunningCommand) -> None:
        member.lane, member.seen, member.turn = Lane.BACKGROUND, self._now, False
        member.level = level_of(member.weighted_s, self._settings)
        self._background.put(member)
        self._note_overdue(member)
        self._begin_stall(member)

    def _admit(self) -> None:
        """Promotes the overdue while all claims fit, then commands in their order while they fit or can be made fit."""
        if self._claims.use <= self._cores:
            for member in self._claims.overdue():
                self._promote(member, OVERDUE_LEVEL)
                self._make_room()
        while (first := self._background.first()) is not None:
            missing = self._missing(first)
            if missing > 0 and missing > self._displaceable.use_behind(first.level):
                return
            self._promote(first, first.level)
            self._make_room()

    def _missing(self, member: RunningCommand) -> float:
        """Returns the cores that a command in the background lacks for the foreground."""
        return member.use + self._use - self._limit

    def _make_room(self) -> None:
        """Demotes commands, the last in order first, until the foreground fits."""
        while self._use > self._limit and (last := self._displaceable.first()) is not None:
            self._demote(last)

    def _measure(self, member: RunningCommand, attained_s: float) -> None:
        if member.lane is Lane.FOREGROUND:
            before = member.use
            member.take_foreground_measurement(attained_s, self._granted, self._cores, self._settings.use_memory_s)
            after, member.use = member.use, before
            self._change_use(member, after)
        elif member.lane is Lane.BACKGROUND:
            member.take_background_measurement(attained_s, self._now)
            member.level = level_of(member.weighted_s, self._settings)
            self._background.reorder(member)
            self._note_overdue(member)
            self._watch_background(member)

    def _note_overdue(self, member: RunningCommand) -> None:
        """Notes whether a command in the background is overdue now."""
        late = member.rank(self._now, self._granted) <= claim_rank(self._settings) + _TINY
        member.overdue = late and member.level > NEW_LEVEL
        self._claims.update(member)

    def _change_use(self, member: RunningCommand, use: float) -> None:
        """Changes the use of a command in the foreground."""
        queued = member.displaceable
        if queued:
            self._displaceable.remove(member)
        self._use += use - member.use
        member.use = use
        if queued:
            self._displaceable.put(member)
        self._claims.update(member)

    def _review(self, member: RunningCommand) -> None:
        """Compares a command that is due with the others, or lets it go on."""
        if member.lane is Lane.BACKGROUND:
            self._review_stall(member)
            return
        member.settle_foreground(self._granted)
        if member.attained_s < member.quantum_ends_s - _TINY:
            passed_s = self._settings.max_stall_s if member.turn else member.charged_s
            self._watch_quantum(member, _REVIEW_PART * max(passed_s, self._settings.quantum_s))
        elif member.command.demotable and self._must_yield(member):
            self._demote(member)
        else:
            if member.displaceable:
                self._displaceable.remove(member)
            self._begin_quantum(member, level_of(member.weighted_s, self._settings))

    def _must_yield(self, member: RunningCommand) -> bool:
        """Returns whether a command at the end of its quantum gives up its place to an earlier one, or to none."""
        level = level_of(member.weighted_s, self._settings)
        if self._use > self._limit and (level > NEW_LEVEL or member.turn):
            return True
        first = self._background.first()
        if first is None or self._missing(first) > member.use:
            return False
        return first.order < (level, member.began)

    def _begin_quantum(self, member: RunningCommand, level: int) -> None:
        """Begins a quantum of a command in the foreground that is not in its queue."""
        member.level, member.turn = level, False
        member.quantum_ends_s = quantum_end(level, member.weighted_s, self._settings) * member.command.weight
        if member.displaceable:
            self._displaceable.put(member)
        self._claims.update(member)
        self._watch_quantum(member)

    def _watch_quantum(self, member: RunningCommand, least_s: float = _LATE_S) -> None:
        """Asks for a review when a command should have used up its quantum, in `least_s` at the earliest."""
        left_s = (member.quantum_ends_s - member.extrapolated(self._granted)) / max(member.use, _LEAST_USE)
        # Time passes at least as fast as grants. Quanta become long: use is measured whenever the clock has doubled.
        after_s = max(min(left_s / self._grant_rate(), max(self._settings.quantum_s, member.charged_s)), least_s)
        self._reviews.set(member.command.command_id, self._now + after_s)

    def _begin_stall(self, member: RunningCommand) -> None:
        member.stall_mark_s = member.attained_s
        member.stall_ends = self._now + check_after_s(self._settings)
        self._watch_background(member)

    def _watch_background(self, member: RunningCommand) -> None:
        """Asks for a review when a command becomes overdue, or has stalled for too long."""
        at = member.stall_ends
        if member.ageing > 0 and not member.overdue:
            above_s = member.rank(self._now, self._granted) - claim_rank(self._settings)
            if above_s > 0:
                at = min(at, self._now + above_s / member.ageing + _LATE_S)
        self._reviews.set(member.command.command_id, at)

    def _review_stall(self, member: RunningCommand) -> None:
        self._note_overdue(member)
        if self._now < member.stall_ends - _TINY:
            self._watch_background(member)
            return
        turn_s = turn(self._cores, len(self._members), self._settings)
        if member.attained_s - member.stall_mark_s >= turn_s - _TINY:
            self._begin_stall(member)
            return
        self._promote(member, NEW_LEVEL)
        member.turn = True
        member.quantum_ends_s = member.attained_s + turn_s
        self._watch_quantum(member)
        self._make_room()

    def _note(self, member: RunningCommand) -> None:
        self._before.setdefault(member.command.command_id, member.lane)

    def _changes(self) -> list[LaneChange]:
        """Returns what changed since the last call, and forgets it."""
        changes = [
            LaneChange(command_id, lane)
            for command_id, before in self._before.items()
            if (lane := self._members[command_id].lane) is not None and lane is not before
        ]
        self._before.clear()
        return changes
