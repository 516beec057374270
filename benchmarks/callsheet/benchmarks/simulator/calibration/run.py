"""Runs all calibration experiments."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.simulator.calibration import arl_tangram, rollart
from callsheet.benchmarks.simulator.calibration.coding_traces import coding_traces
from callsheet.benchmarks.simulator.calibration.gpu_mix import gpu_mix
from callsheet.benchmarks.simulator.calibration.table import CalibrationTable, Experiment
from callsheet.benchmarks.simulator.worker_pool import map_in_processes

# In the order of the table.
_EXPERIMENTS: tuple[Callable[[], Experiment], ...] = (
    arl_tangram.coding,
    arl_tangram.teachers,
    rollart.slow_environments,
    rollart.redundancy,
    rollart.software_step,
    gpu_mix,
)


def calibrate(
    progress: Progress = lambda _: None, *, processes: int = 1, trace: Path | None = None
) -> CalibrationTable:
    """Does the published experiments again: fits a few named parameters, predicts all other figures.

    Args:
        progress: Told what is done.
        processes: Experiments at once.
        trace: The clean public coding trajectories in our trace format (scripts/convert_agentcgroup.py); None draws
            from the distributions fitted to them.

    Raises:
        InputError: The trace is not right.
        OSError: The trace cannot be read.
    """
    # The longest first.
    names = [coding_traces.__name__, *(experiment.__name__ for experiment in reversed(_EXPERIMENTS))]
    found = map_in_processes(
        partial(_run, trace=trace), names, processes, lambda _, experiment: progress(_summary(experiment))
    )
    return CalibrationTable(tuple(reversed(found)))


def _run(name: str, trace: Path | None) -> Experiment:
    by_name = {experiment.__name__: experiment for experiment in _EXPERIMENTS}
    return by_name[name]() if name in by_name else coding_traces(trace)


def _summary(experiment: Experiment) -> str:
    hits = sum(row.hit for row in experiment.rows)
    return f"{experiment.name}: {hits} of {len(experiment.rows)} figures hit"
