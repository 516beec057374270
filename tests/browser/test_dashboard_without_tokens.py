"""The dashboard of a scheduler without tokens: it shows all, and acts for its own pages on its machine alone."""

from __future__ import annotations

import http.client
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from tests.support.browser import Browser
from tests.support.hosts import hosts_of
from tests.support.shown_rollouts import JOB, OTHER_JOB, STUCK
from tests.support.shown_stack import ShownStack, running_rollouts, running_up
from tests.support.waiting import block_until


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ShownStack]:
    """A stack that was just started."""
    with running_up(tmp_path_factory.mktemp("open"), "--share-cores", "reserved", tokens=False) as stack:
        yield stack


@pytest.fixture(scope="module")
def busy(empty: ShownStack) -> Iterator[ShownStack]:
    """The same with rollouts."""
    with running_rollouts(empty):
        yield empty


def posted(url: str, fields: Mapping[str, str], headers: Mapping[str, str]) -> tuple[int, str]:
    """The status of a form that no browser sent, and the page."""
    split = urlsplit(url)
    connection = http.client.HTTPConnection(split.hostname or "", split.port, timeout=60)
    try:
        form = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        connection.request("POST", split.path, urlencode(fields), form)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def test_an_empty_system_shows_what_to_do_first(browser: Browser, empty: ShownStack) -> None:
    for dark in (False, True):
        browser.look(empty.page("now"), dark=dark)
        assert "callsheet demo" in browser.text
        assert browser.findings() == []


def test_forms_of_other_pages_are_refused_and_its_own_act(browser: Browser, busy: ShownStack) -> None:
    cancel, fields = busy.page("cancel"), {"job": JOB, "action": STUCK}
    own = busy.url
    for headers in (
        {},
        {"Origin": "null"},
        {"Origin": "http://page.example"},
        {"Origin": own, "Host": "page.example"},
        {"Origin": own.replace("http:", "https:")},
    ):
        assert posted(cancel, fields, headers)[0] == 403, headers
    assert busy.audit("cancel") == []
    browser.look(busy.page("action", job=JOB, action=STUCK))
    browser.press("Cancel this action")
    browser.press("Cancel this action")
    assert busy.told("explain", STUCK, "--job", JOB)["state"] == "cancelled"
    browser.look(busy.page("job", job=OTHER_JOB))
    browser.press("Close this job")
    browser.press("Close this job")
    block_until(lambda: [each["job_id"] for each in busy.audit("close")] == [OTHER_JOB])
    block_until(lambda: [each["result"] for each in busy.audit("cancel")] == ["OK"])


def test_browsers_of_other_machines_change_nothing(tmp_path: Path) -> None:
    with hosts_of(("server", "reader"), tmp_path) as (server, reader):
        options = ("--listen", f"{server.address}:0", "--insecure", "--managers", "noop")
        with server.entered(), running_up(tmp_path, *options, tokens=False) as stack, reader.entered():
            # The scheduler is not even asked.
            status, page = posted(stack.page("drain"), {"manager": "any"}, {"Origin": stack.url})
            assert status == 403
            assert "acts for browsers on its own machine alone" in page
            assert stack.audit("drain") == []
