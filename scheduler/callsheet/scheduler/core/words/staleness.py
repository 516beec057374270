"""The three questions of a job's staleness policy: may a trajectory begin, is it trained on, does it end early?

Pure functions of versions and counts. A trajectory's staleness is the newest policy version less the newest when it
began, counted up to its consumption.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StalenessPolicy:
    """Limits on the staleness of a job's trajectories; a limit that the job does not set is None.

    Attributes:
        admit_within: A trajectory waits to begin while another start could make one staler than this.
        select_within: A trajectory that is staler than this when a batch is taken is dropped.
        evict_beyond: A live trajectory that is staler than this is closed as abandoned.
    """

    admit_within: int | None = None
    select_within: int | None = None
    evict_beyond: int | None = None


@dataclass(frozen=True, slots=True)
class OnTheWay:
    """Trajectories of a job that began and are in no batch.

    Attributes:
        live: Those that have not ended.
        finished: Those that finished.
        wanted: How many the requests ask for at least that wait for a batch.
        oldest: The policy version that the oldest of them began with; the newest if there are none.
    """

    live: int
    finished: int
    wanted: int
    oldest: int

    @property
    def shortfall(self) -> int:
        """How many more must begin or nobody who waits is ever served: what is leased may wait for them too."""
        return max(self.wanted - (self.live + self.finished), 0)


def most_on_the_way(version: int, oldest: int, batch: int, within: int) -> int:
    """How many trajectories may be on their way so that none need be consumed staler than `within`.

    Each batch of a trainer makes one version, however few trajectories are in it. The oldest trajectory may see
    `within - (version - oldest)` more of them. So at most so many batches may be trained without it, and with the batch
    that it is in itself these are all that may be on their way. Where the oldest is at its limit, the trainer thus
    waits for it, and it is not overtaken.

    Args:
        version: The newest policy version, once all leased batches have been trained on.
        oldest: The policy version that the oldest of them began with.
        batch: Trajectories in a full batch.
        within: The bound.
    """
    return max(within - (version - oldest) + 1, 0) * batch


def room_to_begin(version: int, way: OnTheWay, batch: int, within: int) -> int:
    """How many more trajectories may begin; see `most_on_the_way`.

    Returns:
        At least what is missing to all batches that are waited for. So no trainer is starved, nor several that each
        take a part of a step and wait for each other.
    """
    return max(most_on_the_way(version, way.oldest, batch, within) - way.live - way.finished, way.shortfall)


def is_evicted(policy: StalenessPolicy, version: int, began: int) -> bool:
    """Returns whether a live trajectory has to end because a version is published."""
    return policy.evict_beyond is not None and version - began > policy.evict_beyond
