"""Calibration: the simulator's figures beside published ones, with few fitted parameters, all of them named."""

from callsheet.benchmarks.simulator.calibration.run import calibrate
from callsheet.benchmarks.simulator.calibration.table import CalibrationTable

__all__ = ["CalibrationTable", "calibrate"]
