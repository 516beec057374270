"""The buffer of a job: trajectories that finished with a result, and the choice of a batch of them."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median_high
from typing import Final, Literal, NamedTuple

from callsheet.scheduler.core.state.waiting_takers import WaitingTakers
from callsheet.scheduler.core.words.model import TrajectoryResult
from callsheet.scheduler.core.words.peers import BatchTaker

# What became of trajectories by how long they took: whether training prefers short ones is told from it.
#
# Pure. Lengths are counted in classes that double, from one second on.
Fate = Literal["finished", "trained", "stale", "evicted"]
# About twelve days, and all that is longer.
MAX_CLASS = 20
QUANTILES = 4

# Acknowledged batches of a job whose ids are kept, so that a repeated acknowledgement succeeds.
KEPT_ACKNOWLEDGED: Final = 256
# Batches of a job that went back whose ids are kept, so that none names another batch.
KEPT_RETURNED: Final = 1024
# Newest requests whose sizes tell what a job's trainer usually asks for.
KEPT_SIZES: Final = 8

BundleKey = tuple[str, str]
"""A group's id and "", or "" and the id of a trajectory without a group."""


class LengthShare(NamedTuple):
    """A quantile of trajectories by their length in seconds, and what part of them was trained on."""

    up_to_s: float
    trajectories: int
    trained: float


@dataclass(slots=True)
class LengthCounts:
    """Counts by fate and by class of length; class n ends at 2 ** n seconds."""

    counts: dict[Fate, dict[int, int]] = field(default_factory=dict)

    def note(self, fate: Fate, seconds: float) -> None:
        """Counts one trajectory."""
        counts = self.counts.setdefault(fate, {})
        length = class_of(seconds)
        counts[length] = counts.get(length, 0) + 1

    def total(self, fate: Fate) -> int:
        """How many had this fate."""
        return sum(self.counts.get(fate, {}).values())

    def shares(self) -> list[LengthShare]:
        """The share trained on of those that are over, by quantile of length: quarters as good as classes allow.

        One that was evicted counts with the time that it had lived.
        """
        over = {fate: self.counts.get(fate, {}) for fate in ("trained", "stale", "evicted")}
        classes = sorted({each for counts in over.values() for each in counts})
        sizes = {each: sum(counts.get(each, 0) for counts in over.values()) for each in classes}
        total, shares, count, trained = sum(sizes.values()), list[LengthShare](), 0, 0
        seen = 0
        for each in classes:
            count += sizes[each]
            seen += sizes[each]
            trained += over["trained"].get(each, 0)
            if seen * QUANTILES >= total * (len(shares) + 1) or each == classes[-1]:
                shares.append(LengthShare(2.0**each, count, trained / count))
                count = trained = 0
        return shares


def class_of(seconds: float) -> int:
    """The class of a length."""
    return min(max(math.ceil(math.log2(seconds)), 0), MAX_CLASS) if seconds > 0.0 else 0


@dataclass(slots=True)
class BufferedTrajectory:
    """A trajectory that finished with a result.

    Attributes:
        number: Its place among those that ever finished so in its job.
        policy_version: The newest when it was opened.
        opened_at: When it began, after its wait for that; in seconds since the epoch, as `finished_at`.
    """

    trajectory_id: str
    group_id: str
    number: int
    policy_version: int
    opened_at: float
    finished_at: float
    result: TrajectoryResult

    @property
    def bundle(self) -> BundleKey:
        """The bundle that it belongs to."""
        return bundle_of(self.trajectory_id, self.group_id)

    @property
    def took_s(self) -> float:
        """Seconds from its opening to its end."""
        return max(self.finished_at - self.opened_at, 0.0)


@dataclass(slots=True)
class Bundle:
    """Trajectories that go to a trainer together.

    Attributes:
        whole: No other member will join it.
        batch_id: The batch that it was given out with; empty while it is in none.
    """

    key: BundleKey
    members: list[BufferedTrajectory] = field(default_factory=list)
    whole: bool = False
    batch_id: str = ""

    @property
    def number(self) -> int:
        """Its place in the order: that of its first member."""
        return self.members[0].number

    @property
    def policy_version(self) -> int:
        """The oldest version that one of its members began with."""
        return min(each.policy_version for each in self.members)


@dataclass(slots=True)
class LeasedBatch:
    """Batch that a trainer has taken.

    Attributes:
        size: The most trajectories that were asked for.
        lease_s: Seconds that it was leased for.
        ends_at: When that ends, in seconds since the epoch.
        keys: Its bundles, the oldest first.
        policy_version: The newest when it was taken.
        taker: Who asked for it last; None after a restart.
        told: Whether an earlier request may have been given it.
    """

    batch_id: str
    size: int
    lease_s: float
    ends_at: float
    keys: tuple[BundleKey, ...]
    policy_version: int
    taker: BatchTaker | None = None
    told: bool = False


@dataclass(slots=True, eq=False)
class Buffer:
    """See the module's docstring.

    Attributes:
        bundles: By key, in the order of their first members.
        incomplete: Those that are not whole.
        ready: Those that are whole and in no batch.
        batches: Those that are leased, by id.
        acknowledged: Ids of the newest batches that were acknowledged, the oldest first.
        returned: Ids of the newest that went back.
        takers: Requests that wait.
        sizes: The most trajectories that were asked for, in the newest requests.
        last_number: Of the last trajectory.
        count: Trajectories in all bundles.
        size: Bytes of their results.
        held_versions: How many trajectories in whole bundles, leased ones included, began with each policy version.
        ready_versions: How many of these that are in no batch.
        lengths: What became of trajectories by how long they took, since the scheduler's start.
        staleness: Trajectories that were trained on since then, by their staleness as their batch was taken.
    """

    bundles: dict[BundleKey, Bundle] = field(default_factory=dict)
    incomplete: dict[BundleKey, Bundle] = field(default_factory=dict)
    ready: dict[BundleKey, Bundle] = field(default_factory=dict)
    batches: dict[str, LeasedBatch] = field(default_factory=dict)
    acknowledged: dict[str, None] = field(default_factory=dict)
    returned: dict[str, None] = field(default_factory=dict)
    takers: WaitingTakers = field(default_factory=WaitingTakers)
    sizes: deque[int] = field(default_factory=lambda: deque(maxlen=KEPT_SIZES))
    last_number: int = 0
    count: int = 0
    size: int = 0
    held_versions: Counter[int] = field(default_factory=Counter)
    ready_versions: Counter[int] = field(default_factory=Counter)
    lengths: LengthCounts = field(default_factory=LengthCounts)
    staleness: dict[int, int] = field(default_factory=dict)

    @property
    def held(self) -> int:
        """Trajectories in whole bundles, leased ones included: from a bound of them on no new trajectory begins."""
        return self.held_versions.total()

    @property
    def ready_count(self) -> int:
        """Trajectories that may be taken now."""
        return self.ready_versions.total()

    @property
    def batch_size(self) -> int:
        """The most that is usually asked for: one request of another size changes nothing; 0 before the first."""
        return median_high(self.sizes) if self.sizes else 0

    def add(self, finished: BufferedTrajectory) -> Bundle:
        """Adds a trajectory to its bundle, which is not whole yet."""
        bundle = self.bundles.get(finished.bundle)
        if bundle is None:
            bundle = self.bundles[finished.bundle] = self.incomplete[finished.bundle] = Bundle(finished.bundle)
        bundle.members.append(finished)
        self.count += 1
        self.size += len(finished.result.encoded)
        self.last_number = max(self.last_number, finished.number)
        return bundle

    def make_whole(self, bundle: Bundle) -> None:
        """No other member will join a bundle."""
        if not bundle.whole:
            bundle.whole = True
            del self.incomplete[bundle.key]
            self.held_versions.update(each.policy_version for each in bundle.members)
            self._make_ready(bundle)

    def _make_ready(self, bundle: Bundle) -> None:
        bundle.batch_id = ""
        self.ready[bundle.key] = bundle
        self.ready_versions.update(each.policy_version for each in bundle.members)

    def _leave_ready(self, key: BundleKey) -> None:
        bundle = self.ready.pop(key, None)
        if bundle is not None:
            self.ready_versions.subtract(each.policy_version for each in bundle.members)
            self.ready_versions = +self.ready_versions

    def lease(self, batch: LeasedBatch) -> None:
        """Gives bundles that are ready out as a batch."""
        self.batches[batch.batch_id] = batch
        for key in batch.keys:
            self.bundles[key].batch_id = batch.batch_id
            self._leave_ready(key)

    def give_back(self, batch: LeasedBatch) -> None:
        """Takes a batch back: its bundles are ready again, at the places that they had."""
        del self.batches[batch.batch_id]
        for key in batch.keys:
            self._make_ready(self.bundles[key])

    def remove(self, keys: Iterable[BundleKey]) -> list[BufferedTrajectory]:
        """Takes whole bundles out for good; returns what was in them."""
        gone = [self.bundles.pop(key) for key in keys]
        for bundle in gone:
            self._leave_ready(bundle.key)
        members = [member for bundle in gone for member in bundle.members]
        self.count -= len(members)
        self.size -= sum(len(each.result.encoded) for each in members)
        self.held_versions.subtract(each.policy_version for each in members)
        self.held_versions = +self.held_versions
        return members

    def members_of(self, batch: LeasedBatch) -> list[BufferedTrajectory]:
        """The trajectories of a batch, the oldest bundle first."""
        return [member for key in batch.keys for member in self.bundles[key].members]

    def note_acknowledged(self, batch_id: str) -> list[str]:
        """Keeps the id of a batch that was acknowledged; returns those that are forgotten for it."""
        return _keep(self.acknowledged, batch_id, KEPT_ACKNOWLEDGED)

    def note_returned(self, batch_id: str) -> list[str]:
        """Keeps the id of a batch that went back; returns those that are forgotten for it."""
        return _keep(self.returned, batch_id, KEPT_RETURNED)


def _keep(ids: dict[str, None], batch_id: str, most: int) -> list[str]:
    ids[batch_id] = None
    too_many = list(ids)[: max(len(ids) - most, 0)]
    for each in too_many:
        del ids[each]
    return too_many


def bundle_of(trajectory_id: str, group_id: str) -> BundleKey:
    """The key of the bundle that a trajectory belongs to."""
    return (group_id, "") if group_id else ("", trajectory_id)


@dataclass(frozen=True, slots=True)
class Choice:
    """Whole bundles for a batch.

    Attributes:
        keys: The oldest first; none if there are too few.
        full: Nothing more fits into it.
    """

    keys: tuple[BundleKey, ...]
    full: bool


def choose(ready: Mapping[BundleKey, Bundle], at_least: int, at_most: int) -> Choice:
    """The oldest of some whole bundles: while there are fewer trajectories than `at_least`, or the next one fits.

    So the bundle that completes `at_least` may make it more than `at_most`, and no bundle is too large for all batches.
    """
    chosen: list[BundleKey] = []
    count = 0
    for bundle in sorted(ready.values(), key=lambda each: each.number):
        if count >= at_least and count + len(bundle.members) > at_most:
            return Choice(tuple(chosen), full=True)
        chosen.append(bundle.key)
        count += len(bundle.members)
    return Choice(tuple(chosen) if count >= at_least else (), full=count >= at_most)
