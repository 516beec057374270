"""Openings, the ends of trajectories and the lives of jobs, as the contract has them."""

from __future__ import annotations

from typing import Final

from callsheet.scheduler.core.words.model import Opened, Token, TrajectoryEnd
from callsheet.v1 import job_pb2

_TO_WIRE: Final = {end: job_pb2.TrajectoryEnd.Value(f"TRAJECTORY_END_{end.name}") for end in TrajectoryEnd}
_FROM_WIRE: Final = {number: end for end, number in _TO_WIRE.items()}


def opening_of(opened: Opened | None) -> job_pb2.Opening.ValueType:
    """Returns the result of an open; unspecified if there is none."""
    return job_pb2.Opening.ValueType(opened.opening if opened is not None else 0)


def end_of(opened: Opened | None) -> job_pb2.TrajectoryEnd.ValueType:
    """Returns the end of the trajectory that was opened; unspecified if it has not ended."""
    end = opened.end if opened is not None else None
    return to_wire(end) if end is not None else job_pb2.TRAJECTORY_END_UNSPECIFIED


def life_of(begun_after: Token) -> str:
    """Returns a job's life as a text of the contract. All have one width, so that lives sort as tokens do."""
    return f"{begun_after.epoch:010x}-{begun_after.sequence:016x}"


def to_wire(end: TrajectoryEnd) -> job_pb2.TrajectoryEnd.ValueType:
    """Returns the contract's number of an end of a trajectory."""
    return _TO_WIRE[end]


def from_wire(end: int) -> TrajectoryEnd:
    """Returns the end of a trajectory by its number in the contract; no end means that it is completed."""
    return _FROM_WIRE.get(job_pb2.TrajectoryEnd.ValueType(end), TrajectoryEnd.COMPLETED)
