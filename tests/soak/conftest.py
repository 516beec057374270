"""How large the loads are."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(scope="session")
def nightly() -> bool:
    """Whether loads have their full size, as in `make nightly`, and not that of `make test`."""
    return os.environ.get("CALLSHEET_NIGHTLY") == "1"


# Minutes of waiting for Ray to add and to take away machines: in `make nightly` alone.
collect_ignore = [] if os.environ.get("CALLSHEET_NIGHTLY") == "1" else ["test_ray_autoscaling.py"]
