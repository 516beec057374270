"""Who may see and change what from the pages of a scheduler with tokens. What was changed is in the audit."""

from __future__ import annotations

import pytest

from tests.support.browser import Browser
from tests.support.shown_rollouts import JOB, OTHER_JOB, STUCK
from tests.support.shown_stack import ShownStack


def sandboxes(shown: ShownStack) -> str:
    """The id of the manager of sandboxes."""
    (found,) = (each for each in shown.told("status")["managers"] if each["manager_id"].endswith("-sandbox"))
    return str(found["manager_id"])


def test_nothing_is_shown_without_a_token(browser: Browser, shown: ShownStack) -> None:
    for view in ("stuck", "now", "job"):
        browser.look(shown.page(view, job=JOB))
        assert browser.driver.current_url.startswith(shown.page("login"))
        assert JOB not in browser.text
    browser.log_in(shown.url, "callsheet_000000000000_" + "0" * 64)
    assert browser.buttons() != []
    assert not any(each["name"].startswith("callsheet_token") for each in browser.driver.get_cookies())
    (refused,) = browser.errors()
    assert "403" in refused


def test_a_token_of_a_job_sees_its_job_alone(browser: Browser, shown: ShownStack) -> None:
    browser.log_in(shown.url, shown.issue("job", JOB))
    for view in ("now", "stuck"):
        browser.look(shown.page(view))
        assert JOB in browser.text
        assert OTHER_JOB not in browser.text
    browser.errors()
    for view, query in (("job", {}), ("action", {"action": "html"}), ("close", {})):
        browser.look(shown.page(view, job=OTHER_JOB, **query))
        assert "window.hacked" not in browser.text.replace(OTHER_JOB, "")
        assert browser.errors() != [], view
    browser.look(shown.page("drain", manager=sandboxes(shown)))
    assert "403" in "".join(browser.errors())


@pytest.mark.parametrize(
    ("act", "query"),
    [("cancel", {"job": JOB, "action": STUCK}), ("close", {"job": JOB}), ("drain", {"manager": "sandboxes"})],
)
def test_a_token_that_only_reads_changes_nothing(
    act: str, query: dict[str, str], browser: Browser, shown: ShownStack
) -> None:
    browser.log_in(shown.url, shown.issue("read-only"))
    if "manager" in query:
        query = {"manager": sandboxes(shown)}
    view = {"cancel": "action", "close": "job", "drain": "manager"}[act]
    browser.look(shown.page(view, **query))
    assert not any("\N{HORIZONTAL ELLIPSIS}" in each for each in browser.buttons())
    # As a page would whose buttons are not hidden.
    status = browser.run(
        "const form = new URLSearchParams(arguments[1]); const call = new XMLHttpRequest();"
        "call.open('POST', arguments[0], false); call.send(form); return call.status;",
        f"/{act}",
        query,
    )
    assert status == 403
    assert [each for each in shown.audit(act) if each["result"] == "OK"] == []
    assert shown.told("explain", STUCK, "--job", JOB)["state"] == "queued"
    assert "403" in "".join(browser.errors())


def test_an_administrator_cancels_closes_and_drains(browser: Browser, shown: ShownStack) -> None:
    browser.log_in(shown.url, shown.token)
    browser.look(shown.page("action", job=JOB, action=STUCK))
    browser.press("Cancel this action")
    browser.press("Cancel this action")
    assert shown.told("explain", STUCK, "--job", JOB)["state"] == "cancelled"
    browser.look(shown.page("job", job=OTHER_JOB))
    browser.press("Close this job")
    browser.press("Close this job")
    assert [each["job_id"] for each in shown.told("jobs")["jobs"]] == [JOB]
    manager = sandboxes(shown)
    browser.look(shown.page("manager", manager=manager))
    browser.press("Drain this manager")
    browser.press("Drain this manager")
    assert "draining" in browser.text
    done = {act: [each for each in shown.audit(act) if each["result"] == "OK"] for act in ("cancel", "close", "drain")}
    assert [len(each) for each in done.values()] == [1, 1, 1], done
