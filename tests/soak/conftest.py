"""How large the loads are."""

from __future__ import annotations

import pytest

from tests.support.samples import is_nightly


@pytest.fixture(scope="session")
def nightly() -> bool:
    """Whether loads have their full size, as in `make nightly`, and not that of `make test`."""
    return is_nightly()


# In `make nightly` alone: minutes in which Ray adds and takes away machines, and what `make test` runs in part.
collect_ignore = [] if is_nightly() else ["test_ray_autoscaling.py", "test_all_in_full.py"]
