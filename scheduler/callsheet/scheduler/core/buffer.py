"""The buffer of a job: trajectories that finished with a result, until a trainer has acknowledged their batch.

What goes to a trainer together is a bundle: the finished members of a group, or one trajectory without a group. It is
whole once its group has its quorum, or no seat of it can finish any more. Whole bundles are given oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from callsheet.scheduler.core.lengths import LengthCounts
from callsheet.scheduler.core.model import TrajectoryResult
from callsheet.scheduler.core.peers import BatchTaker

# Acknowledged batches of a job whose ids are kept, so that a repeated acknowledgement succeeds.
KEPT_ACKNOWLEDGED: Final = 256
# Requests of a job that wait for a batch.
MAX_TAKERS: Final = 64

BundleKey = tuple[str, str]
"""A group's id and "", or "" and the id of a trajectory without a group."""


@dataclass(slots=True)
class BufferedTrajectory:
    """A trajectory that finished with a result.

    Attributes:
        number: Its place among those that ever finished so in its job.
        policy_version: The newest when it was opened.
        opened_at: In seconds since the epoch, as `finished_at`.
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
        """What it belongs to."""
        return bundle_of(self.trajectory_id, self.group_id)

    @property
    def took_s(self) -> float:
        """Seconds from its opening to its end."""
        return max(self.finished_at - self.opened_at, 0.0)

    def is_mixed(self) -> bool:
        """Whether several policy versions made its tokens, as far as its rollout told."""
        return len(set(self.result.versions)) > 1


@dataclass(slots=True)
class Bundle:
    """What goes to a trainer together.

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
    """What a trainer has taken.

    Attributes:
        size: Trajectories that were asked for.
        lease_s: Seconds that it was leased for.
        ends_at: When that ends, in seconds since the epoch.
        keys: Its bundles, the oldest first.
        policy_version: The newest when it was taken.
    """

    batch_id: str
    size: int
    lease_s: float
    ends_at: float
    keys: tuple[BundleKey, ...]
    policy_version: int


class WaitingTaker(NamedTuple):
    """A request for a batch that cannot be given yet."""

    taker: BatchTaker
    batch_id: str
    size: int
    lease_s: float


@dataclass(slots=True, eq=False)
class Buffer:
    """See the module's docstring.

    Attributes:
        bundles: By key, in the order of their first members.
        batches: Those that are leased, by id.
        acknowledged: Ids of the newest batches that were acknowledged, the oldest first.
        takers: Requests that wait, in the order in which they came.
        batch_size: Trajectories that were asked for last; 0 before the first request.
        last_number: Of the last trajectory.
        held: Trajectories in whole bundles, leased ones included: what the bound is for.
        lengths: What became of trajectories by how long they took, since the scheduler's start.
        staleness: Trajectories that were trained on since then, by their staleness as their batch was taken.
    """

    bundles: dict[BundleKey, Bundle] = field(default_factory=dict)
    batches: dict[str, LeasedBatch] = field(default_factory=dict)
    acknowledged: dict[str, None] = field(default_factory=dict)
    takers: list[WaitingTaker] = field(default_factory=list)
    batch_size: int = 0
    last_number: int = 0
    held: int = 0
    lengths: LengthCounts = field(default_factory=LengthCounts)
    staleness: dict[int, int] = field(default_factory=dict)

    def add(self, finished: BufferedTrajectory) -> Bundle:
        """Adds a trajectory to its bundle, which is not whole yet."""
        bundle = self.bundles.setdefault(finished.bundle, Bundle(finished.bundle))
        bundle.members.append(finished)
        self.last_number = max(self.last_number, finished.number)
        return bundle

    def make_whole(self, bundle: Bundle) -> None:
        """No other member will join a bundle."""
        if not bundle.whole:
            bundle.whole = True
            self.held += len(bundle.members)

    def remove(self, keys: Iterable[BundleKey]) -> list[BufferedTrajectory]:
        """Takes whole bundles out for good; returns what was in them."""
        gone = [self.bundles.pop(key) for key in keys]
        members = [member for bundle in gone for member in bundle.members]
        self.held -= len(members)
        return members

    def members_of(self, batch: LeasedBatch) -> list[BufferedTrajectory]:
        """The trajectories of a batch, the oldest bundle first."""
        return [member for key in batch.keys for member in self.bundles[key].members]

    def note_acknowledged(self, batch_id: str) -> list[str]:
        """Keeps the id of a batch that was acknowledged; returns those that are forgotten for it."""
        self.acknowledged[batch_id] = None
        too_many = list(self.acknowledged)[: max(len(self.acknowledged) - KEPT_ACKNOWLEDGED, 0)]
        for each in too_many:
            del self.acknowledged[each]
        return too_many


def bundle_of(trajectory_id: str, group_id: str) -> BundleKey:
    """The key of the bundle that a trajectory belongs to."""
    return (group_id, "") if group_id else ("", trajectory_id)


def choose(bundles: Mapping[BundleKey, Bundle], size: int) -> tuple[BundleKey, ...]:
    """The oldest whole bundles that are in no batch, with at least so many trajectories together.

    Returns:
        Their keys, the oldest first; none if there are too few.
    """
    free = sorted((each for each in bundles.values() if each.whole and not each.batch_id), key=lambda each: each.number)
    chosen, count = [], 0
    for bundle in free:
        if count >= size:
            break
        chosen.append(bundle.key)
        count += len(bundle.members)
    return tuple(chosen) if count >= size else ()
