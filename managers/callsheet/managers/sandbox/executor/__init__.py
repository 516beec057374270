"""Executors: one persistent sandbox for each trajectory, or a fresh one for each reward."""
