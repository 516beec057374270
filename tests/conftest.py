"""Set-up of the whole test suite."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester", "tests.support.skips"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, as gRPC does."""
    return "asyncio"
