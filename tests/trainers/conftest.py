"""What the tests of all trainers share: a primed model, and a stack that serves it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trainers.stacks import running_stack


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, as gRPC does."""
    return "asyncio"


@pytest.fixture(scope="session")
def model_directory() -> Path:
    """A small model that calls tools."""
    from tests.trainers.tiny_model import primed_model

    return primed_model()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, model_directory: Path) -> Iterator[str]:
    """Where a stack listens that serves the model. Each file has one of its own."""
    with running_stack(tmp_path_factory.mktemp("stack") / "data", model_directory) as listening:
        yield listening
