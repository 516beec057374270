"""Workloads: readable parameter files, and the scenarios drawn from them.

`scenario("coding", seed=1, trajectories=640, cores=50)` is what most callers need; `load` gives the parameters.
"""

from callsheet.benchmarks.simulator.workloads.parameters import Workload, load, names
from callsheet.benchmarks.simulator.workloads.scenarios import alone_s, scenario

__all__ = ["Workload", "alone_s", "load", "names", "scenario"]
