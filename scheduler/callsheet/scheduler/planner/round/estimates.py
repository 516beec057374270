"""What the planner expects of actions, and when one has waited too long."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import log2

import numpy as np
from callsheet.scheduler.core.state.entities import Action, Manager
from callsheet.scheduler.core.state.scheduler_state import ClassKey, ReadyClass
from callsheet.scheduler.core.words.events import GrantPrediction
from callsheet.scheduler.core.words.model import ActionKind, ActionRequest, SpeedUp
from callsheet.scheduler.planner.fleet.pools import USUAL_USE, Fleet
from callsheet.scheduler.planner.predictors import Prediction, PredictionKey, Predictors
from callsheet.scheduler.planner.predictors.predictors import amdahl_hint, predict
from callsheet.scheduler.planner.question.instance import DEFAULT_DURATION
from callsheet.scheduler.planner.round.competition import Servable
from callsheet.scheduler.planner.round.options import Estimate

LEAST_DURATION_S = 1e-3
# Size classes to an octave of duration.
SIZES_PER_OCTAVE = 2
MOST_ANSWERED = 1024


def size_of_duration(seconds: float) -> int:
    """The size class of a duration."""
    return round(SIZES_PER_OCTAVE * log2(max(seconds, LEAST_DURATION_S)))


def duration_of_size(size: int) -> float:
    """Duration in the middle of a size class."""
    return float(2.0 ** (size / SIZES_PER_OCTAVE))


class Estimates:
    """Asks the predictors; without any, actions take what their clients said, or a second."""

    def __init__(self, predictors: Predictors | None = None, *, sorted_by_size: bool = True) -> None:
        """Starts with nothing asked.

        Args:
            predictors: Who is asked.
            sorted_by_size: Whether classes have sizes; where nobody sorted, one takes as long as its label does.
        """
        self._predictors = predictors
        self._sorted_by_size = sorted_by_size
        # What was answered since the predictors last learned: alike actions come in batches, and each is asked about
        # when it becomes ready and when it is placed.
        self._answered: dict[Hashable, Prediction] = {}
        self._answered_at = -1

    def of_request(self, request: ActionRequest) -> Prediction | None:
        """The prediction for one action; None without predictors."""
        if self._predictors is None:
            return None
        if self._answered_at != self._predictors.revision or len(self._answered) >= MOST_ANSWERED:
            self._answered_at = self._predictors.revision
            self._answered.clear()
        likeness = (
            request.key.job_id,
            request.kind,
            request.label,
            request.task,
            request.expected_duration,
            request.demand,
            request.timeouts.start_to_close,
        )
        known = self._answered.get(likeness)
        if known is None:
            known = self._answered[likeness] = predict(self._predictors, request)
        return known

    def duration(self, request: ActionRequest) -> float:
        """Seconds at the fewest units."""
        prediction = self.of_request(request)
        return prediction.duration_s if prediction is not None else request.expected_duration or DEFAULT_DURATION

    def of_grant(self, request: ActionRequest, units: Mapping[str, int]) -> GrantPrediction | None:
        """What a manager is told to expect of an attempt with these units; None without predictors."""
        prediction = self.of_request(request)
        if prediction is None:
            return None
        gain = 1.0
        for entry in request.demand.entries:
            if entry.elastic and units.get(entry.resource, 0) > entry.min_units:
                curve = entry.speed_up if entry.speed_up.points else SpeedUp(prediction.amdahl_fraction)
                gain *= curve.at(units[entry.resource], entry.min_units)
        use = min(prediction.use * gain, request.demand.most_cores())
        return GrantPrediction(prediction.duration_s / gain, use)

    def size_of(self, action: Action) -> int:
        """The size class of an action; see `ReadyQueue.size_of`."""
        return size_of_duration(self.duration(action.request))

    def of_class(self, key: ClassKey) -> Estimate:
        """What to expect of a member of a class: its size says how long, its label how it uses cores."""
        duration = duration_of_size(key.size)
        if self._predictors is None:
            return Estimate(duration, USUAL_USE)
        like = PredictionKey(key.job, key.kind, key.label, "")
        prediction = self._predictors.predict(like, amdahl_hint=amdahl_hint(key.demand))
        duration = duration if self._sorted_by_size else prediction.duration_s
        return Estimate(duration, prediction.use, prediction.amdahl_fraction)

    def cores_of_job(self, job: str) -> float:
        """Cores that a command of a job's trajectories uses; what weighs trajectories against each other."""
        command = self._command_of(job)
        return max(command.use, 0.01) if command is not None else USUAL_USE

    def command_of_job(self, job: str) -> tuple[float, float] | None:
        """(seconds alone, core-seconds) of a command of a job's trajectories; None without predictors."""
        command = self._command_of(job)
        return (command.duration_s, command.duration_s * command.use) if command is not None else None

    def _command_of(self, job: str) -> Prediction | None:
        if self._predictors is None:
            return None
        return self._predictors.predict(PredictionKey(job, ActionKind.ENV_STEP, "", ""))


# When an action has waited too long: for its duration, and for what waits with it.
#
# An action is late once it has waited for its duration divided by the ageing, as long as that can be had at all.
# Where more waits than can be served so soon, everybody would be late, and going by lateness would mean first come,
# first served. So nobody is late before having waited for twice the time that all the competing work would take, up
# to a bound that keeps an endless overload from starving anybody.
#
# Members of a class are in order of arrival, so nobody has waited longer than those ahead, but for those that are
# retried: they kept their places and wait anew.

BACKLOGS = 2.0
MOST_PATIENCE = 20.0
HOLDING = 2.0


def backlog_s(fleet: Fleet, servable: Sequence[Servable]) -> list[float]:
    """Seconds in which a fleet could do the work that waits with each class, its own included.

    Work is counted by kind of resource, at the fewest units; a class waits for the kind that needs the longest.
    """
    if not servable:
        return []
    kinds = {kind: number for number, kind in enumerate(dict.fromkeys(fleet.row_kinds))}
    kind_of = np.array([kinds[kind] for kind in fleet.row_kinds], np.int64)
    # Rows beyond the fleet's own columns only tell how units lie on nodes.
    owner = np.repeat(np.arange(len(servable)), [len(block.touched) for _, block in servable])
    rows = np.concatenate([block.touched for _, block in servable])
    unit_s = np.concatenate([block.touched_unit_s for _, block in servable])
    own = rows < len(kind_of)
    owner, rows, unit_s = owner[own], rows[own], unit_s[own]
    least = np.full((len(servable), len(kinds)), np.inf)
    np.minimum.at(least, (owner, kind_of[rows]), unit_s)
    touched = np.isfinite(least)
    count = np.array([ready.count for ready, _ in servable], np.float64)
    work = count @ np.where(touched, least, 0.0)
    used = np.unique(rows)
    capacity = np.bincount(kind_of[used], weights=np.array(fleet.row_capacity)[used], minlength=len(kinds))
    seconds = np.divide(work, capacity, out=np.zeros(len(kinds)), where=capacity > 0)
    waits: list[float] = np.where(touched, seconds, 0.0).max(axis=1, initial=0.0).tolist()
    return waits


def late_after_s(duration_s: float, ageing: float, backlog: float) -> float:
    """Wait after which an action is late; infinite for an ageing of 0."""
    if not ageing:
        return float("inf")
    soonest = duration_s / ageing
    return max(soonest, min(BACKLOGS * backlog, MOST_PATIENCE * soonest))


def hold_after_s(hold_after: float, backlog: float) -> float:
    """Wait after which a node is held for an action that fits nowhere.

    A node that is held runs empty. That is the last resort, once lateness has not helped for as long again.
    """
    return max(hold_after, HOLDING * min(BACKLOGS * backlog, MOST_PATIENCE * hold_after))


def first_members(ready: ReadyClass, most: int) -> Iterator[Action]:
    """Up to so many members of a class in order; most who ask look at the first one only."""
    head = ready.head()
    if head is not None:
        yield head
        yield from islice(ready, 1, most)


def longest_wait_s(members: Iterable[Action], now: float) -> float:
    """Seconds that the member of a class has waited that has waited longest; 0 if there is none."""
    longest = 0.0
    for action in members:
        longest = max(longest, now - action.queued_since)
        if not action.attempts:
            break
    return longest


def late_members(members: Iterable[Action], late_after: float, now: float) -> int:
    """How many of a class's members are late or ahead of one that is: it comes to its turn after them."""
    late = 0
    for place, action in enumerate(members, 1):
        if now - action.queued_since > late_after:
            late = place
        elif not action.attempts:
            break
    return late


# What a node that is held for an overdue action keeps from younger ones.
#
# Units that trajectories hold come back only as these trajectories go on. While such units are short, they alone
# are kept: to keep a core as well would stop the very rewards whose trajectories hold the memory. Once nothing is
# short but units that running attempts give back by themselves, all that the action needs is kept, so that nobody
# can take the memory while a core is awaited.


def held_resources(needed: Mapping[str, int], free: Mapping[str, int], managers: Iterable[Manager]) -> frozenset[str]:
    """Resources of which a node keeps what it has.

    Args:
        needed: The fewest units of the overdue action that the node must have free.
        free: Units of the node that are free.
        managers: The node's managers, whose trajectories' sandboxes may hold units.
    """
    short = {resource for resource, units in needed.items() if free.get(resource, 0) < units}
    lasting = short & kept_by_trajectories(managers)
    return frozenset(lasting or needed)


def kept_by_trajectories(managers: Iterable[Manager]) -> frozenset[str]:
    """Resources of which some sandbox of these managers holds units between its actions."""
    return frozenset(
        resource for manager in managers for trajectory in manager.sandboxes.values() for resource in trajectory.held
    )
