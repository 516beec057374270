"""What models, programs and users write is text in a page, whatever it tries to be."""

from __future__ import annotations

import pytest

from tests.support.browser import Browser
from tests.support.shown_rollouts import HOSTILE, OTHER_JOB, OUTPUTS, SCRIPT
from tests.support.shown_stack import ShownStack


@pytest.fixture
def reader(browser: Browser, shown: ShownStack) -> Browser:
    """The browser of an administrator, who may see contents."""
    browser.log_in(shown.url, shown.token)
    return browser


def is_quiet(page: Browser) -> bool:
    """Whether nothing ran that a page had as text."""
    return page.run("return window.hacked === undefined && !document.querySelector('main script, main img')") is True


def test_names_are_text(reader: Browser, shown: ShownStack) -> None:
    pages = {
        "now": {},
        "job": {"job": OTHER_JOB},
        "close": {"job": OTHER_JOB},
    }
    for view, query in pages.items():
        reader.look(shown.page(view, **query))
        assert is_quiet(reader), view
        assert OTHER_JOB in reader.text, view
    for wrong in ("<script>window.hacked=1</script>", "\x1b[31m", "\u202e", "%00", "A" * 5000):
        reader.look(shown.page("stuck", job=wrong))
        assert is_quiet(reader), wrong


@pytest.mark.parametrize("name", OUTPUTS)
def test_outputs_are_text(name: str, reader: Browser, shown: ShownStack) -> None:
    reader.look(shown.page("trajectory", job=OTHER_JOB, trajectory=HOSTILE, contents="1"))
    assert is_quiet(reader)
    assert reader.run("return document.documentElement.outerHTML.length") < 4_000_000
    shown_text = {"escapes": "red", "html": SCRIPT, "long": "A" * 100, "broken": "end"}[name]
    assert shown_text in reader.text
    assert "\x1b" not in reader.text
    assert "\u202e" not in reader.text
    assert reader.findings() == []
