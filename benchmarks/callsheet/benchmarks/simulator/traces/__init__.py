"""Replay of recorded trajectories; docs/reference/trace-format.md describes the format."""

from callsheet.benchmarks.simulator.traces.trajectories import scenario

__all__ = ["scenario"]
