"""Values of buffer.proto, which `make protos` writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Self

from callsheet.v1 import buffer_pb2, common_pb2
from callsheet.v1.values import mapping, seconds


@dataclass(frozen=True, slots=True)
class FinishedTrajectory:
    """A finished trajectory that no trainer has acknowledged yet.

    Attributes:
        trajectory_id: Its id.
        group_id: Its group; empty if it has none.
        reward: Its worth; a finite number.
        payload: The rollout's data for the trainer; empty for nothing, and in listings. Inline at most 4,096 bytes. A
            stored payload is kept until its batch is acknowledged, and then as any that the job uses no longer.
        policy_version: The newest policy version when it was opened.
        staleness: The newest version less that one: when its batch was taken, or now.
        took_s: Time from its opening to its end.
        waited_s: Time since its end.
        batch_id: The batch that it was given out with; empty while it is in none.
        whole: Whether its group is whole, so that it may be given out.
    """

    trajectory_id: str
    group_id: str = ""
    reward: float = 0.0
    payload: bytes = field(default=b"", repr=False)
    policy_version: int = 0
    staleness: int = 0
    took_s: float = 0.0
    waited_s: float = 0.0
    batch_id: str = ""
    whole: bool = True

    @classmethod
    def from_message(cls, message: buffer_pb2.BufferedTrajectory, read: Callable[[common_pb2.Blob], bytes]) -> Self:
        """Returns the value of a message, whose blobs `read` reads."""
        return cls(
            message.trajectory_id,
            message.group_id,
            message.result.reward,
            read(message.result.payload),
            message.policy_version,
            message.staleness,
            seconds(message.took),
            seconds(message.waited),
            message.batch_id,
            message.whole,
        )


@dataclass(frozen=True, slots=True)
class BatchContent:
    """Finished trajectories that are leased to a trainer.

    Attributes:
        batch_id: The id that its taker chose.
        trajectories: Its trajectories, the oldest group first, and groups whole; none if there were too few.
        policy_version: The newest policy version when it was taken.
        lease_s: Time that its lease went on when it came.
    """

    batch_id: str
    trajectories: tuple[FinishedTrajectory, ...] = ()
    policy_version: int = 0
    lease_s: float = 0.0

    @classmethod
    def from_message(cls, message: buffer_pb2.TrajectoryBatch, read: Callable[[common_pb2.Blob], bytes]) -> Self:
        """Returns the value of a message, whose blobs `read` reads."""
        return cls(
            message.batch_id,
            tuple(FinishedTrajectory.from_message(each, read) for each in message.trajectories),
            message.policy_version,
            seconds(message.lease),
        )


@dataclass(frozen=True, slots=True)
class LeasedBatch:
    """A leased batch without its trajectories.

    Attributes:
        batch_id: Its id.
        trajectories: Trajectories in it.
        lease_s: Time that its lease goes on.
    """

    batch_id: str
    trajectories: int
    lease_s: float

    @classmethod
    def from_message(cls, message: buffer_pb2.LeasedBatchStatus) -> Self:
        """Returns the value of a message."""
        return cls(
            message.batch_id,
            message.trajectories,
            seconds(message.lease),
        )


@dataclass(frozen=True, slots=True)
class LengthShare:
    """Trajectories of about one length, and the part of them that was trained on.

    Attributes:
        up_to_s: They took at most so long.
        trajectories: Number of those that are over: trained on, dropped or evicted.
        trained: The part of them that was trained on, 0 to 1.
    """

    up_to_s: float
    trajectories: int
    trained: float

    @classmethod
    def from_message(cls, message: buffer_pb2.LengthShare) -> Self:
        """Returns the value of a message."""
        return cls(
            seconds(message.up_to),
            message.trajectories,
            message.trained,
        )


@dataclass(frozen=True, slots=True)
class BufferStatus:
    """A job's buffer of finished trajectories.

    Counts over time begin at the scheduler's start.

    Attributes:
        ready: Trajectories that may be taken now.
        leased: Trajectories in batches that are leased.
        incomplete: Finished trajectories that wait for the rest of their group.
        bound: If so many are ready or leased, no new trajectory begins.
        held_up: The reason why new trajectories do not begin now, as a sentence; empty if they may.
        batches: The leased batches.
        waiting_takers: Requests that wait for a batch.
        counts: Trajectories that finished with a result, were trained on, or were dropped: "finished", "trained",
            "stale" and "evicted".
        staleness: Trajectories that were trained on, by their staleness.
        lengths: The part that was trained on by length, in about four quantiles.
    """

    ready: int = 0
    leased: int = 0
    incomplete: int = 0
    bound: int = 0
    held_up: str = ""
    batches: tuple[LeasedBatch, ...] = ()
    waiting_takers: int = 0
    counts: Mapping[str, int] = field(default_factory=dict)
    staleness: Mapping[int, int] = field(default_factory=dict)
    lengths: tuple[LengthShare, ...] = ()

    @classmethod
    def from_message(cls, message: buffer_pb2.BufferStatus) -> Self:
        """Returns the value of a message."""
        return cls(
            message.ready,
            message.leased,
            message.incomplete,
            message.bound,
            message.held_up,
            tuple(map(LeasedBatch.from_message, message.batches)),
            message.waiting_takers,
            mapping(message.counts),
            mapping(message.staleness),
            tuple(map(LengthShare.from_message, message.lengths)),
        )


@dataclass(frozen=True, slots=True)
class FinishedResult:
    """The last word of a rollout on its trajectory.

    Attributes:
        reward: Its worth; a finite number.
        payload: The rollout's data for the trainer; empty for nothing, and in listings. Inline at most 4,096 bytes. A
            stored payload is kept until its batch is acknowledged, and then as any that the job uses no longer.
    """

    reward: float
    payload: bytes = b""
