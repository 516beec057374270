"""Names that the parts of `callsheet submit` share. Imports nothing."""

from __future__ import annotations

RESET_SUFFIX = "-reset"
"""What the id of an action has more where it makes the sandbox for the one that was asked for."""
