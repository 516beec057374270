"""The shell that runs the scheduler's own core, planner, predictors and node sharing under virtual time."""
