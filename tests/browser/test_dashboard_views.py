"""Each view in a real browser: its numbers, its colours, its keyboard, and what axe-core thinks of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from callsheet.v1 import action_pb2, admin_service_pb2

from tests.support.browser import Browser
from tests.support.shown_rollouts import GROUP, HOLDER, JOB, MEMBERS, STUCK
from tests.support.shown_stack import ShownStack

_MEMBER = f"{GROUP}/0"
VIEWS = {
    "stuck": {},
    "now": {},
    "job": {"job": JOB},
    "action": {"job": JOB, "action": STUCK},
    "what-if": {"nodes": "2"},
    "manager": {},
    "engines": {},
    "trajectories": {"job": JOB},
    "trajectory": {"job": JOB, "trajectory": _MEMBER, "contents": "1"},
    "group": {"job": JOB, "group": GROUP},
    "step": {"job": JOB, "version": "0"},
    "login": {},
}
_MOST_PAGES = 60
_PICTURED = ("stuck", "now", "trajectory", "group")
_PICTURES = os.environ.get("CALLSHEET_SCREENSHOTS")


@pytest.fixture
def reader(browser: Browser, shown: ShownStack) -> Browser:
    """The browser of somebody who may see all."""
    browser.log_in(shown.url, shown.token)
    return browser


def address(shown: ShownStack, view: str) -> str:
    """Where a view is."""
    query = dict(VIEWS[view])
    if view == "manager":
        query["manager"] = shown.told("status")["managers"][0]["manager_id"]
    if view == "what-if":
        query["pool"] = shown.told("status")["nodes"][0]["node_id"]
    return shown.page(view, **query)


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_for_everybody_in_light_and_dark(view: str, reader: Browser, shown: ShownStack) -> None:
    grounds = set()
    for dark in (False, True):
        reader.look(address(shown, view), dark=dark)
        assert reader.run("return document.querySelectorAll('main h1').length") == 1
        grounds.add(reader.run("return getComputedStyle(document.body).backgroundColor"))
        assert reader.findings() == []
        if _PICTURES and view in _PICTURED and not dark:
            reader.picture(Path(_PICTURES, f"dashboard-{view}.png"))
    assert len(grounds) == 2
    assert reader.unreached() == []


def test_what_is_stuck_is_explained_by_what_is_short_and_by_whom(reader: Browser, shown: ShownStack) -> None:
    told = shown.told("explain", STUCK, "--job", JOB)
    reader.look(shown.page("stuck"))
    (shortage,) = told["shortages"]
    for text in (STUCK, HOLDER, told["explanation"], shortage["resource"], str(shortage["needed"]), "alive"):
        assert text in reader.text


def test_now_has_the_numbers_of_the_scheduler(reader: Browser, shown: ShownStack) -> None:
    (job,) = (each for each in shown.told("jobs")["jobs"] if each["job_id"] == JOB)
    status = shown.told("status")
    reader.look(shown.page("now"))
    rows = reader.rows("Jobs")
    (row,) = (each for each in rows if each[0] == JOB)
    ended = sum(job["actions"].get(state, 0) for state in ("succeeded", "failed", "cancelled", "expired"))
    assert row[1] == str(job["open_trajectories"]) == "3"
    assert row[3] == str(job["actions"]["queued"]) == "2"
    assert row[4] == str(job["actions"]["running"]) == "1"
    assert row[5] == f"{ended}"
    for node in status["nodes"]:
        for resource, capacity in node["capacity"].items():
            held = capacity - node["free"][resource]
            assert [node["node_id"], resource, f"{held:,}", f"{capacity:,}"] in reader.rows("Units of nodes")
    assert {each[0] for each in reader.rows("Managers")} == {each["manager_id"] for each in status["managers"]}


def test_what_if_answers_as_the_command_does(reader: Browser, shown: ShownStack) -> None:
    (node,) = shown.told("status")["nodes"]
    told = shown.told("what-if", "--pool", node["node_id"], "--nodes", "2")
    reader.look(shown.page("what-if"))
    reader.fill("nodes", "2")
    reader.press("Ask")
    assert told["summary"] in reader.text
    assert str(told["nodes"]) in reader.text


def test_a_trajectory_and_its_group_have_the_numbers_of_the_scheduler(reader: Browser, shown: ShownStack) -> None:
    trajectories = admin_service_pb2.ListTrajectoryHistoryRequest(job_id=JOB, group_id=GROUP)
    members = shown.ask("ListTrajectoryHistory", trajectories).trajectories
    actions = admin_service_pb2.ListActionHistoryRequest(job_id=JOB, trajectory_ids=[_MEMBER])
    acted = shown.ask("ListActionHistory", actions).actions
    assert len(members) == MEMBERS
    reader.look(shown.page("group", job=JOB, group=GROUP))
    rows = reader.rows("Siblings")
    assert {row[0]: row[3] for row in rows} == {each.trajectory_id: f"{each.scores[-1]:g}" for each in members}
    reader.look(shown.page("trajectory", job=JOB, trajectory=_MEMBER))
    made = sum(each.output_tokens for each in acted)
    generates = sum(each.kind == action_pb2.ACTION_KIND_GENERATE for each in acted)
    (row,) = (each for each in reader.rows("Where its time went") if each[0] == "generate")
    assert (row[1], row[4]) == (str(generates), str(made))
    used = sum(each.usage.cost.used["cpu"] for each in acted)
    assert used > 0
    (row,) = (each for each in reader.rows("What it cost") if each[0].startswith("cpu"))
    assert any(
        float(cell.split()[0].replace(",", "")) == pytest.approx(used, rel=0.01)
        for cell in row[1:]
        if cell[:1].isdigit()
    )


def test_every_link_leads_to_a_page(reader: Browser, shown: ShownStack) -> None:
    seen = reader.walk(shown.url, _MOST_PAGES)
    assert {each.partition("?")[0] for each in seen} >= {"/stuck", "/now", "/action", "/trajectory", "/group", "/step"}
