"""Replay of recorded traces: trajectories in our own format, and requests in two formats of public data sets.

docs/reference/trace-format.md describes the formats.
"""

from callsheet.benchmarks.simulator.traces.replay import scenario

__all__ = ["scenario"]
