"""Set-up of the whole test suite."""

from __future__ import annotations

import gc
import os
from collections.abc import AsyncIterator, Generator, Iterator

import pytest
import sniffio
import structlog
from hypothesis import HealthCheck, settings

# How fast the machine is decides no test. All else is as Hypothesis has it: with CI=true the same examples every time.
settings.register_profile("callsheet", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("callsheet")

# Connections that end as they should are no news between the dots of the tests.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

_PLUGINS = ["deadlines", "grpc_loops", "measurements", "rewriting", "samples", "skips", "workers"]
pytest_plugins = ["pytester", *(f"tests.support.{name}" for name in _PLUGINS)]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects tests without a search for garbage, and spares later searches what stays until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, as gRPC does."""
    return "asyncio"


@pytest.fixture(scope="session", autouse=True)
async def one_event_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Keeps one event loop for all async tests.

    gRPC has one completion queue for the whole process. What a call of an earlier test still completes after its loop
    is closed would be raised in a later test, as "Event loop is closed".
    """
    yield  # noqa: PT022 (a generator, because it is what keeps the loop)


@pytest.fixture(scope="session", autouse=True)
def sync_tests_run_outside_it(one_event_loop: None) -> None:
    """Lets a test that is not async run an event loop of its own.

    anyio's plugin notes with sniffio, where that is installed, that asyncio runs, and does so for sync tests, too.
    """
    sniffio.current_async_library_cvar.set(None)


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Undoes what a command that ran in this process did to the logs: its standard error is closed by then."""
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
