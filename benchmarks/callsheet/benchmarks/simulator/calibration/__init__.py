"""Calibration: the simulator's figures beside published ones, with few fitted parameters, all of them named."""
