"""Scheduler and managers run together on one machine: stack, supervision, and what each process is told."""
