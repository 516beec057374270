"""Planners: pure functions from the core's state to a proposal."""
