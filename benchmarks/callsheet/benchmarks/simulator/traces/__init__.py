"""Replay of recorded trajectories; docs/reference/trace-format.md describes the format."""

from callsheet.benchmarks.simulator.traces.replay import scenario

__all__ = ["scenario"]
