"""Replay of recorded trajectories; docs/reference/trace-format.md describes the format."""

from callsheet.benchmarks.simulator.traces.trajectories import recorded_acts, scenario

__all__ = ["recorded_acts", "scenario"]
