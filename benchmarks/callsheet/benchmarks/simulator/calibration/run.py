"""Runs all calibration experiments."""

from __future__ import annotations

from collections.abc import Callable

from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.simulator.calibration import rollart
from callsheet.benchmarks.simulator.calibration.gpu_mix import gpu_mix
from callsheet.benchmarks.simulator.calibration.table import CalibrationTable, Experiment
from callsheet.benchmarks.simulator.worker_pool import map_in_processes

_EXPERIMENTS = (rollart.slow_environments, rollart.redundancy, rollart.software_step, gpu_mix)


def calibrate(processes: int, progress: Progress) -> CalibrationTable:
    """Does the published experiments again: fits a few named parameters, predicts all other figures.

    Args:
        processes: Experiments at once.
        progress: Told what is done.
    """
    found = map_in_processes(_run, _EXPERIMENTS, processes, lambda _, experiment: progress(_summary(experiment)))
    return CalibrationTable(tuple(found))


def _run(experiment: Callable[[], Experiment]) -> Experiment:
    return experiment()


def _summary(experiment: Experiment) -> str:
    hits = sum(row.hit for row in experiment.rows)
    return f"{experiment.name}: {hits} of {len(experiment.rows)} figures hit"
