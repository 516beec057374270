"""Rewards that are commands: test suites and scripts, and their scores."""
