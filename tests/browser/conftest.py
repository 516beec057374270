"""One stack with rollouts, and one browser, for all tests of the dashboard's pages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.browser import Browser, running_browser
from tests.support.shown_stack import ShownStack, running_rollouts, running_up


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownStack]:
    """A stack that asks for tokens. Each command has its cores for itself, so that another one can lack them."""
    data_dir = tmp_path_factory.mktemp("shown")
    with running_up(data_dir, "--share-cores", "reserved", tokens=True) as stack, running_rollouts(stack):
        yield stack


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser that all tests share."""
    with running_browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    """The browser, without cookies. In the end no page of the test may have had an error, or asked anybody else."""
    yield chromium
    found = (chromium.errors(), chromium.outside())
    chromium.forget()
    assert found == ([], [])
