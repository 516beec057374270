"""Sandboxes on one machine: what runs env_reset, env_step and test-suite rewards."""
