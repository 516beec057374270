"""What the settings of a soak's scheduler allow it to keep, and whether it kept to that. Pure; sizes in bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

MIB: Final = 1024 * 1024

STREAM_BYTES: Final = 64 * MIB
# A soak reaches each bound after about so large a part of its time.
REACHED_AFTER: Final = 0.1


@dataclass(frozen=True, slots=True)
class SoakLimits:
    """The scheduler's settings: smaller for a shorter soak, so that it reaches them.

    Attributes:
        kept_s: Seconds for which finished and closed actions are kept, and closed trajectories.
        finished_actions: Most finished actions and closed trajectories.
        finished_bytes: Most bytes of their outcomes and specs.
    """

    kept_s: float
    finished_actions: int
    finished_bytes: int

    @classmethod
    def of(cls, part_s: float) -> SoakLimits:
        """Those of a soak that takes so many seconds on a database."""
        return cls(
            kept_s=max(part_s * REACHED_AFTER, 1.0),
            finished_actions=max(int(part_s * 15), 100),
            finished_bytes=max(int(part_s * 0.2 * MIB), 2 * MIB),
        )

    @property
    def environment(self) -> dict[str, str]:
        """As environment variables."""
        kept = f"{self.kept_s:g}"
        values = {
            "FINISHED_ACTIONS": self.finished_actions,
            "FINISHED_ACTIONS_BYTES": self.finished_bytes,
            "FINISHED_ACTIONS_S": kept,
            "CLOSED_ACTIONS": 1_000,
            "CLOSED_ACTIONS_S": kept,
            "JOB_GRACE": 1,
            "EXPIRED_JOB_LIFETIME": 2,
            "MAX_OPEN_BYTES": STREAM_BYTES,
            "MAX_JOB_OPEN_BYTES": STREAM_BYTES,
            "MAX_PENDING_BYTES": STREAM_BYTES,
            "MAX_UNREAD_BYTES": STREAM_BYTES,
        }
        return {f"CALLSHEET_{name}": str(value) for name, value in values.items()}


# Measured: what a finished action takes in memory without its outcome, and its row in a journal without it.
_FINISHED_BYTES_EACH: Final = 1_000
_ROW_BYTES: Final = 2_000
# An entry has 32 bytes; arrays grow ahead of what is in them.
_FORGOTTEN_BYTES_EACH: Final = 50
# What an allocator does not give back, messages that gRPC holds, and the predictors.
_SLACK: Final = 128 * MIB
_WAL: Final = 64 * MIB
# Free pages that a file may keep, at most a third of what is used; dead rows until the next vacuum are at most as much.
_FREE_PART: Final = {"sqlite": 4 / 3, "postgresql": 3.0}
# What may change between the last thirds without being a trend.
_STEADY: Final = 1.10
# Trajectories that are open, or whose group is.
_OPEN: Final = 64
_STEADY_BYTES: Final = 24 * MIB


@dataclass(frozen=True, slots=True)
class SoakSample:
    """What a scheduler used at a time: seconds since the load began, actions that had their outcome, and bytes.

    Attributes:
        forgotten: Actions, trajectories and groups of the long job of which no more than the id need be left.
        trajectories: Those of the long job that were listed, closed ones included.
        directory: The data directory.
        database: The database, if it is PostgreSQL's; else 0.
    """

    at_s: float
    actions: int
    forgotten: int
    rss: int
    directory: int
    database: int = 0
    trajectories: int = 0

    @property
    def disk(self) -> int:
        """All that is on disk."""
        return self.directory + self.database


@dataclass(frozen=True, slots=True)
class Finding:
    """One question, and whether the answer is yes."""

    sentence: str
    met: bool


def findings(database: str, limits: SoakLimits, samples: Sequence[SoakSample]) -> list[Finding]:
    """Whether memory and disk stayed within what the settings allow, and had stopped growing at the end.

    Args:
        database: "sqlite" or "postgresql".
        limits: The scheduler's.
        samples: The first one is of before the load, the rest in the order of time.
    """
    forgotten = max(sample.forgotten for sample in samples) * _FORGOTTEN_BYTES_EACH
    memory = samples[0].rss + 3 * STREAM_BYTES + limits.finished_actions * _FINISHED_BYTES_EACH + forgotten + _SLACK
    live = limits.finished_bytes + STREAM_BYTES + limits.finished_actions * _ROW_BYTES + forgotten
    disk = samples[0].disk + int(live * _FREE_PART[database]) + _WAL + _SLACK
    return [
        _within("memory", max(sample.rss for sample in samples), memory),
        _within("disk", max(sample.disk for sample in samples), disk),
        _steady("memory", [sample.rss for sample in samples], forgotten),
        _steady("disk", [sample.disk for sample in samples], forgotten),
        _few_trajectories(max(sample.trajectories for sample in samples), limits.finished_actions),
    ]


def _few_trajectories(most: int, kept: int) -> Finding:
    return Finding(f"trajectories of the long job: at most {most}, of {kept} that are kept", most <= kept + _OPEN)


def _within(what: str, most: int, bound: int) -> Finding:
    return Finding(f"{what}: at most {most // MIB} MiB, of {bound // MIB} MiB that the settings allow", most <= bound)


def _steady(what: str, sizes: Sequence[int], forgotten: int) -> Finding:
    third = max(len(sizes) // 3, 1)
    before, after = median(sizes[third : 2 * third]), median(sizes[2 * third :])
    grew = after <= before * _STEADY + _STEADY_BYTES + forgotten
    return Finding(f"{what}: {before / MIB:.0f} MiB in the second third and {after / MIB:.0f} MiB in the last", grew)
