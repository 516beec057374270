"""What `make test` runs a sample of, and what is left to the night, in full."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.measurements import Measured
from tests.support.other_user import REPOSITORY

_REAL = tuple(f"tests/{name}" for name in ("faults", "integration", "contract"))
CHOSEN = {
    "beyond the samples": ("-m", "nightly", *_REAL),
    # Chosen by the tests that start them.
    "an unprivileged user": ("-k", "unprivileged", *_REAL),
    "every history and example": (
        *("tests/sim", "tests/property"),
        *(f"tests/faults/test_{name}_under_load.py" for name in ("kill", "managers_away")),
    ),
}


@pytest.mark.parametrize("which", CHOSEN)
def test_all_holds_in_full(which: str, measured: Measured) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *CHOSEN[which]]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    measured(done.stdout.strip().splitlines()[-1])
