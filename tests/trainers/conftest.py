"""What the tests of all trainers share: a primed model, and a stack that serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.grader_package import stage_graders
from tests.trainers.stacks import running_stack


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Async tests run on asyncio, as gRPC does."""
    return "asyncio"


FIGURES = pytest.StashKey[list[str]]()


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Notes a figure, which the end of the run tells."""
    return request.config.stash.setdefault(FIGURES, []).append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Tells the figures."""
    for figure in config.stash.get(FIGURES, []):
        terminalreporter.write_line(figure)


@pytest.fixture(scope="session")
def model_directory() -> Path:
    """A small model that calls tools."""
    from tests.trainers.tiny_model import primed_model

    return primed_model()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory, model_directory: Path) -> Iterator[str]:
    """Where a stack listens that serves the model. Each file has one of its own."""
    place = tmp_path_factory.mktemp("stack")
    with running_stack(place / "data", model_directory, "--stage", str(stage_graders(place))) as listening:
        yield listening
