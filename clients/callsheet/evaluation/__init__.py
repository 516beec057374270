"""Evaluation without a trainer: episodes of a task set, one result line for each task and trial."""
