"""Chance of faults."""

from __future__ import annotations

import os
import random
import sys

import pytest


@pytest.fixture
def chance() -> random.Random:
    """Chance from a seed that the output of a failed test names."""
    seed = os.environ.get("CALLSHEET_FAULT_SEED") or str(random.SystemRandom().randrange(1 << 32))
    sys.stderr.write(f"CALLSHEET_FAULT_SEED={seed}\n")
    return random.Random(seed)
