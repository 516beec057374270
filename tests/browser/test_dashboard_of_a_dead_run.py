"""The dashboard of a `callsheet up` that was killed: each view of what it left, and nothing that acts."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlencode

import pytest

from tests.browser.test_dashboard_views import VIEWS
from tests.support.browser import Browser
from tests.support.shown_rollouts import HOLDER, STUCK
from tests.support.shown_stack import dead_run, kill, running_rollouts, running_up

# Nothing is known of managers and nodes, and no token is asked for.
_VIEWS = VIEWS.keys() - {"manager", "what-if", "login"}
_MOST_PAGES = 40


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The dashboard of a run that was killed with all its processes while it was at work."""
    data_dir = tmp_path_factory.mktemp("dead")
    with (
        running_up(data_dir, "--share-cores", "reserved", tokens=False) as stack,
        running_rollouts(stack) as rollouts,
    ):
        kill(rollouts, stack.process)
        with dead_run(data_dir) as url:
            yield url


@pytest.mark.parametrize("view", sorted(_VIEWS))
def test_a_view_says_that_the_run_is_over_and_offers_no_acts(view: str, url: str, browser: Browser) -> None:
    for dark in (False, True):
        browser.look(f"{url}/{view}?{urlencode(VIEWS[view])}", dark=dark)
        assert "This run is over: it was last alive at" in browser.text
        assert browser.findings() == []
        assert browser.buttons() in (["Set"], ["Set", "Look"])


def test_what_was_stuck_is_told_and_each_link_leads_to_a_page(url: str, browser: Browser) -> None:
    browser.look(f"{url}/stuck")
    assert STUCK in browser.text
    assert HOLDER in browser.text
    seen = {each.partition("?")[0] for each in browser.walk(url, _MOST_PAGES)}
    assert seen >= {"/stuck", "/now", "/engines", "/job", "/action", "/trajectory", "/group"}
    assert not seen & {"/manager", "/what-if", "/cancel", "/close", "/drain"}
