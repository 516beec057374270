"""Pages of a made-up run: each view's numbers, and what is never done with them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pytest
from callsheet.client.errors import ConnectionLostError, RefusalCode, refused
from callsheet.dashboard.app import make_app
from callsheet.dashboard.source import Source
from callsheet.dashboard.views.past import lanes_of, times_of
from callsheet.dashboard.words import NOTHING
from callsheet.v1 import admin_service_pb2, common_pb2, job_pb2, outcome_pb2
from starlette.testclient import TestClient

from tests.support.dashboard_pages import KIND, NOW, STATE, MadeUpRun, at, past, trajectory

_HOSTILE = "<img src=x onerror=alert(1)>\x1b]0;owned\x07\u202e\"'&"


_COST = common_pb2.Cost(held={"cpu": 12.0}, used={"cpu": 3.0, "tokens_out": 77.0})


@pytest.fixture
def run() -> MadeUpRun:
    """A run with one job and one trajectory of three actions."""
    made = MadeUpRun(last_alive=NOW)
    job = made.status.jobs.add(policy_version=3, open_trajectories=1)
    job.spec.job_id = "j"
    job.actions.update({"queued": 2, "failed": 1})
    job.failures.update({"infra": 1})
    made.trajectories = [trajectory("t", -100, -40, group_id="g", reward=0.5, task="sum")]
    made.actions = [
        past("a-reset", KIND.ACTION_KIND_ENV_RESET, -100, 1, 4),
        past("a-generate", KIND.ACTION_KIND_GENERATE, -95, 2, 8, output_tokens=77, policy_versions=_spans(3, 4)),
        past("a-reward", KIND.ACTION_KIND_REWARD, -85, 0.5, 3, score=0.5),
    ]
    return made


@pytest.fixture
def pages(run: MadeUpRun) -> Iterator[TestClient]:
    def source(_: str | None) -> Source:
        return run

    with TestClient(make_app(source, has_certificate=False), follow_redirects=False) as client:
        yield client


def _spans(*versions: int) -> list[outcome_pb2.PolicyVersionSpan]:
    return [outcome_pb2.PolicyVersionSpan(version=each, begin=0, end=1) for each in versions]


def _missing(text: str, *parts: str) -> list[str]:
    """Returns the parts that a text does not have."""
    return [part for part in parts if part not in text]


def _text(client: TestClient, path: str) -> str:
    answer = client.get(path)
    assert answer.status_code == 200, answer.text
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", answer.text)))


def test_a_trajectory_tells_where_its_time_went_and_what_it_cost(run: MadeUpRun, pages: TestClient) -> None:
    run.prices = {"cpu": 0.5, "tokens_out": 0.01}
    run.trajectories[0].cost.MergeFrom(_COST)
    text = _text(pages, "/trajectory?job=j&trajectory=t")
    lived = ("lived 1 min", "reward 0.5", "env 1 4.0 s 1.0 s 0", "generate 1 8.0 s 2.0 s 77", "3-4 77")
    assert _missing(text, *lived) == []
    assert _missing(text, "cpu, core-seconds 12 3 6 ", f"tokens out {NOTHING} 77 0.77 ", "all 6.77") == []
    (told,) = re.findall(r'data-gantt="([^"]*)"', pages.get("/trajectory?job=j&trajectory=t").text)
    lanes = {each["name"]: [bar[:2] for bar in each["bars"]] for each in json.loads(unescape(told))["lanes"]}
    assert (lanes["generate"], lanes["waiting"]) == ([[7.0, 15.0]], [[0.0, 1.0], [5.0, 7.0], [15.0, 15.5]])


def test_contents_are_asked_for_on_request_and_shown_as_text(run: MadeUpRun, pages: TestClient) -> None:
    step = past("a-step", KIND.ACTION_KIND_ENV_STEP, -80, 0, 1)
    step.spec.env_step.command.shell = f"echo {_HOSTILE}"
    step.outcome.succeeded.env_step.stdout.inline = _HOSTILE.encode() + b"\xff\x00" + b"x" * 50_000
    step.outcome.succeeded.env_step.stderr.reference.sha256 = "0" * 64
    step.outcome.succeeded.env_step.stderr.reference.size = 10_000_000
    run.payloads["0" * 64] = b"begins here" + b"\x1b" * 100_000
    lost = past("a-lost", KIND.ACTION_KIND_ENV_STEP, -70, 0, 1, outcome_bytes=9_000_000)
    run.actions += [step, lost]
    assert not [each for each in run.asked if getattr(each, "contents", False)]
    page = pages.get("/trajectory?job=j&trajectory=t&contents=1")
    assert "<img" not in page.text
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page.text)
    text = unescape(page.text)
    shown = ("echo <img src=x onerror=alert(1)>␛]0;owned␇\\u202e", "\ufffd␀xxx", "begins here␛")
    sizes = ("This is the beginning of 10,000,000 bytes.", "9,000,000 bytes, and is too large")
    assert _missing(text, *shown, *sizes) == []
    run.payloads.clear()
    assert "10,000,000 bytes are in the payload store" in pages.get("/trajectory?job=j&trajectory=t&contents=1").text


def test_contents_stay_from_page_to_page(run: MadeUpRun, pages: TestClient) -> None:
    run.next_actions = "9.t"
    show = '"/trajectory?job=j&amp;trajectory=t&amp;after=5.t&amp;contents=1"'
    assert show in pages.get("/trajectory?job=j&trajectory=t&after=5.t").text
    run.actions[0].spec.label = "given"
    assert "Where the time of the actions below went" in _text(pages, "/trajectory?job=j&trajectory=t")
    assert "It has 3 actions" not in pages.get("/trajectory?job=j&trajectory=t").text
    later = '"/trajectory?job=j&amp;trajectory=t&amp;after=9.t&amp;contents=1">Later actions'
    assert later in pages.get("/trajectory?job=j&trajectory=t&after=5.t&contents=1").text


def test_a_closed_job_keeps_what_its_groups_cost(run: MadeUpRun, pages: TestClient) -> None:
    run.trajectories = [trajectory(name, -100, -40, group_id="g", cost=_COST) for name in ("t1", "t2")]
    assert "cpu, core-seconds 24 6 " in _text(pages, "/group?job=j&group=g")


def test_closed_jobs_tell_when_they_ran_why_they_were_closed_and_what_they_cost(
    run: MadeUpRun, pages: TestClient
) -> None:
    run.prices = {"cpu": 0.5}
    run.status.jobs.clear()
    for name, reopened in (("j", False), ("<b>k", True)):
        told = admin_service_pb2.ClosedJob(
            job_id=name, reason="its job was idle for 9 s", cost=_COST, reopened=reopened
        )
        told.opened.CopyFrom(at(-100))
        told.closed.CopyFrom(at(-40))
        run.closed_jobs.append(told)
    run.next_jobs = "5.31.5"
    page = pages.get("/closed").text
    assert _missing(page, 'href="/job?job=j"', 'href="/closed?after=5.31.5"') == []
    assert "<b>k" not in page
    closed = ("1 min its job was idle for 9 s 12 cpu 3 cpu, 77 tokens_out 6", "<b>k, opened again since")
    assert _missing(_text(pages, "/closed"), *closed) == []
    of_one = ("1 min its job was idle for 9 s", "cpu, core-seconds 12 3 6", "Trajectories, the newest version first")
    assert _missing(_text(pages, "/job?job=j"), *of_one) == []
    assert 'href="/closed"' in pages.get("/now").text


@pytest.mark.parametrize("path", ["/job", "/job?job=", "/close", "/close?job="])
def test_no_id_is_not_the_first_job(path: str, run: MadeUpRun, pages: TestClient) -> None:
    run.last_alive = None
    run.scope = "admin"
    answer = pages.get(path)
    assert (answer.status_code, "must be given" in unescape(answer.text)) == (400, True)


@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_no_finite_number_breaks_no_page(score: float, run: MadeUpRun, pages: TestClient) -> None:
    run.trajectories = [
        trajectory("t1", -100, -40, group_id="g", reward=0.5),
        trajectory("t2", -100, -40, group_id="g", scores=[score]),
    ]
    run.actions[2].score = score
    assert str(score) in _text(pages, "/trajectory?job=j&trajectory=t2")
    assert "mean reward 0.5" in _text(pages, "/group?job=j&group=g")
    assert str(score) in _text(pages, "/step?job=j&version=0")


@pytest.mark.parametrize(
    ("error", "status"),
    [(ConnectionLostError("gone"), 503), (refused(RefusalCode.UNAUTHENTICATED, field="authorization"), 303)],
)
def test_what_ends_one_of_several_questions_is_told(
    error: Exception, status: int, run: MadeUpRun, pages: TestClient
) -> None:
    run.explained = {"a": admin_service_pb2.ExplainResponse(state=STATE.ACTION_STATE_QUEUED)}
    run.explained["a"].key.job_id = "j"
    run.explain = AsyncMock(side_effect=error)  # type: ignore[method-assign]
    assert pages.get("/stuck").status_code == status


def test_a_head_request_acts_no_more_than_a_look(run: MadeUpRun, pages: TestClient) -> None:
    run.last_alive = None
    run.scope = "admin"
    own = {"Origin": "http://testserver", "Content-Type": "application/x-www-form-urlencoded"}
    assert pages.request("HEAD", "/close?job=j", headers=own, content="job=j").status_code == 200
    assert not run.asked


def test_a_token_that_may_not_read_contents_is_told_so_and_sees_the_rest(run: MadeUpRun, pages: TestClient) -> None:
    run.scope = "read-only"
    text = _text(pages, "/trajectory?job=j&trajectory=t&contents=1")
    assert "Commands and outputs are for a token of the job" in text
    assert "generate 1 8.0 s" in text
    assert not [each for each in run.asked if getattr(each, "contents", False)]
    assert pages.get("/trajectory?job=j&trajectory=nothing").status_code == 404


def test_nobody_is_led_to_a_page_that_would_refuse(run: MadeUpRun, pages: TestClient) -> None:
    for scope, last_alive, is_led in (
        ("", None, True),
        ("read-only", None, True),
        ("job", None, False),
        ("", NOW, False),
    ):
        run.scope, run.last_alive = scope, last_alive
        for path in ("/trajectory?job=j&trajectory=t", "/job?job=never"):
            page = pages.get(path).text
            assert ('href="/what-if"' in page) == is_led, (scope, last_alive, path)
            assert 'href="/engines"' in page
        page = pages.get("/trajectory?job=j&trajectory=t").text
        assert ('href="/manager?manager=m"' in page) == is_led
        assert ">m<" in page


def test_a_group_shows_siblings_their_spread_and_who_was_replaced(run: MadeUpRun, pages: TestClient) -> None:
    lost = trajectory("gone", -90, -60, end=job_pb2.TRAJECTORY_END_LOST, reason="lost to INFRA: node n died")
    run.trajectories += [lost, trajectory("late", -30), trajectory("good", -100, -10, reward=1.0)]
    spec = job_pb2.GroupSpec(group_id="g", size=3, quorum=2)
    run.groups = [
        job_pb2.GroupStatus(spec=spec, completed=["t", "good"], lost=["gone"], open=["late"], has_quorum=True)
    ]
    text = _text(pages, "/group?job=j&group=g")
    of_all = ("mean reward 0.75 spread 0.5 to 1, deviation 0.25", "quorum 2, reached members lost to INFRA replace")
    of_one = f"gone lost lost: replaced {NOTHING} 3 30.0 s lost to INFRA: node n died"
    assert _missing(text, *of_all, of_one) == []
    run.groups = []
    assert "members ever 4" in _text(pages, "/group?job=j&group=g")


def test_a_step_has_stragglers_first_and_the_outliers_of_many_lanes(run: MadeUpRun, pages: TestClient) -> None:
    run.trajectories = [trajectory(f"t{each}", -1000, -1000 + each) for each in range(199, 167, -1)]
    run.summary = admin_service_pb2.TrajectorySummary(trajectories=199, open=7, mean_reward=0.25, median_s=100)
    run.actions = [
        past(f"a{each}", KIND.ACTION_KIND_ENV_STEP, -1000, 0, each, manager_id=f"m{each}", trajectory_id=f"t{each}")
        for each in range(1, 101)
    ]
    text = _text(pages, "/step?job=j&version=3")
    summary = "trajectories 199 still open 7 mean reward 0.25 longest 3 min 19 s median 1 min 40 s"
    assert _missing(text, "the 64 that end last of 100", summary, "a100 t100 env_step 1 min 40 s") == []
    (asked,) = [each for each in run.asked if isinstance(each, admin_service_pb2.ListActionHistoryRequest)]
    assert (asked.brief, [*asked.trajectory_ids]) == (True, [f"t{each}" for each in range(199, 167, -1)])
    assert pages.get("/step?job=j&version=x").status_code == 400


def test_no_two_bars_of_a_lane_overlap() -> None:
    actions = [past(f"a{each}", KIND.ACTION_KIND_ENV_STEP, -100 + each, 0, 2.5) for each in range(10)]
    lanes, left_out = lanes_of(actions, NOW - 100, NOW, 64)
    assert (left_out, len(lanes)) == (0, 3)
    assert [one for _, bars in lanes for one, other in pairwise(bars) if one.end > other.start] == []
    assert lanes[0][1][-1].end == max(bar.end for _, bars in lanes for bar in bars)
    assert lanes_of(actions, NOW - 100, NOW, 2)[1] == 1


def test_where_an_end_and_a_length_are_told_the_begin_is_known() -> None:
    brief = past("a", KIND.ACTION_KIND_ENV_STEP, -100, 30, 20)
    brief.timeline.ClearField("started")
    brief.timeline.execution_s = 20
    assert times_of(brief, NOW) == (NOW - 100, NOW - 70, NOW - 50)


def test_an_action_that_is_stuck_tells_what_is_short_and_who_holds_it(run: MadeUpRun, pages: TestClient) -> None:
    key = common_pb2.ActionKey(job_id="j", action_id="a1")
    told = admin_service_pb2.ExplainResponse(
        key=key, kind=KIND.ACTION_KIND_ENV_STEP, state=STATE.ACTION_STATE_QUEUED, explanation="needs 4 cores"
    )
    told.story.add(event="submitted", time=at(-300))
    told.shortages.add(resource="cpu", needed=4, free=1, capacity=8, node_id="n")
    told.holders.add(job_id="j", action_id="holder", node_id="n", units={"cpu": 7}, held_s=3600, sessions=0)
    told.holders.add(node_id="n", units={"cpu": 1}, held_s=5)
    run.explained = {"a1": told}
    short = ("waits for 5 min: needs 4 cores", "cpu 4 1 8 n", "Its client: away")
    holders = ("holder j 7 cpu 1 h n away; its job is detached", "another job 1 cpu 5.0 s n not told")
    assert _missing(_text(pages, "/stuck"), *short, *holders) == []
    assert 'href="/action?job=j&amp;action=holder"' in pages.get("/stuck").text


def test_what_hangs_is_measured_against_its_kin(run: MadeUpRun, pages: TestClient) -> None:
    for name, since in (("slow", -500), ("quick", -5)):
        key = common_pb2.ActionKey(job_id="j", action_id=name)
        told = admin_service_pb2.ExplainResponse(key=key, state=STATE.ACTION_STATE_RUNNING)
        told.story.add(event="started", time=at(since))
        told.expected.high_s = 60.0
        run.explained[name] = told
    text = _text(pages, "/stuck")
    slow, quick = (f"{since}; nine in ten take 1 min at most" for since in ("hangs: 8 min 20 s", "5.0 s"))
    assert _missing(text, slow, quick) == []


def test_a_dead_run_says_since_when_and_refuses_acts(run: MadeUpRun, pages: TestClient) -> None:
    assert "it was last alive at 1970-01-12 13:46:40 UTC" in _text(pages, "/now")
    answer = pages.post("/close", data={"job": "j"}, headers={"Origin": "http://testserver"})
    assert (answer.status_code, "This run is over" in answer.text) == (403, True)
    assert "Close this job" not in pages.get("/job?job=j").text
    assert not run.asked


def test_a_dead_run_is_not_told_how_to_begin(run: MadeUpRun, pages: TestClient) -> None:
    run.status.jobs.clear()
    assert "callsheet" not in _text(pages, "/now").replace("Callsheet", "")
    run.last_alive = None
    assert "callsheet up starts managers" in _text(pages, "/now")


def test_a_login_while_the_scheduler_is_away_is_no_wrong_token(
    run: MadeUpRun, pages: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "get_server_info", AsyncMock(side_effect=ConnectionLostError("no answer")))
    answer = pages.post("/login", data={"token": "callsheet_a"}, headers={"Origin": "http://testserver"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (503, False)


@pytest.mark.anyio
async def test_guesses_of_tokens_leave_room_for_pages(run: MadeUpRun, monkeypatch: pytest.MonkeyPatch) -> None:
    asking, most, may_end = 0, 0, anyio.Event()

    async def guessed() -> None:
        nonlocal asking, most
        asking += 1
        most = max(most, asking)
        await may_end.wait()
        asking -= 1
        raise refused(RefusalCode.UNAUTHENTICATED, field="authorization")

    monkeypatch.setattr(run, "get_server_info", guessed)
    app = make_app(lambda _: run, has_certificate=False)
    scope = {"type": "http", "method": "POST", "path": "/login", "query_string": b"", "scheme": "http"}
    scope |= {"headers": [(b"host", b"test"), (b"origin", b"http://test")], "server": ("test", 80)}

    async def guess(number: int) -> None:
        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": b"token=guess%d" % number}

        async def send(_: Any) -> None:
            pass

        await app(dict(scope), receive, send)

    async with anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(guess, number)
        await anyio.wait_all_tasks_blocked()
        may_end.set()
    assert most == 32


@pytest.mark.anyio
@pytest.mark.parametrize("path", ["/cancel", "/close", "/drain", "/login", "/theme"])
async def test_forms_that_do_not_come_are_given_up_and_hold_up_no_page(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("callsheet.dashboard.app._PAGE_S", 2.0)
    app, told = make_app(lambda _: MadeUpRun(scope="admin"), has_certificate=False), list[Any]()

    async def never() -> Any:
        await anyio.sleep_forever()

    async def told_of(message: Any) -> None:
        told.append(message.get("status"))

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "scheme": "http"}
    scope |= {"headers": [(b"host", b"test"), (b"origin", b"http://test")], "server": ("test", 80)}
    async with anyio.create_task_group() as tasks:
        for _ in range(40):
            tasks.start_soon(app, dict(scope), never, told_of)
        await anyio.wait_all_tasks_blocked()
        await app(scope | {"method": "GET", "path": "/now"}, never, told_of)
    assert [each for each in told if each] == [200] + [408] * 40


def test_dashboards_on_ports_of_one_machine_have_a_token_each(run: MadeUpRun) -> None:
    tokens: list[str | None] = []

    def source(token: str | None) -> Source:
        tokens.append(token)
        return run

    with TestClient(make_app(source, has_certificate=False), follow_redirects=False) as client:
        for port in (7079, 8079):
            here = {"Host": f"testserver:{port}", "Origin": f"http://testserver:{port}"}
            answer = client.post("/login", data={"token": f"token-{port}"}, headers=here)
            assert "HttpOnly" in answer.headers["set-cookie"]
        tokens.clear()
        for port in (7079, 8079):
            client.get("/now", headers={"Host": f"testserver:{port}"})
        client.post("/logout", headers={"Host": "testserver:7079"})
        client.get("/now", headers={"Host": "testserver:7079"})
        client.get("/now", headers={"Host": "testserver:8079"})
    assert tokens == ["token-7079", "token-8079", None, "token-8079"]


def test_a_page_of_a_refusal_lets_a_viewer_log_out(run: MadeUpRun, pages: TestClient) -> None:
    run.scope = "job"
    assert "Log out" not in pages.get("/step?job=j").text
    pages.cookies["callsheet_token"] = "a-token"
    refused_page = pages.get("/step?job=j")
    assert (refused_page.status_code, "Log out" in refused_page.text) == (400, True)


def test_hostile_names_are_text_everywhere(run: MadeUpRun, pages: TestClient) -> None:
    run.status.jobs[0].spec.job_id = _HOSTILE
    run.trajectories = [trajectory(_HOSTILE, -10, group_id=_HOSTILE, reason=_HOSTILE, task=_HOSTILE, node_id=_HOSTILE)]
    manager = run.status.managers.add(manager_id=_HOSTILE, node_id=_HOSTILE, connected=True)
    manager.services.add(name=_HOSTILE, problem=_HOSTILE).weights.reason = _HOSTILE
    manager.capabilities[_HOSTILE] = _HOSTILE
    run.status.nodes.add(node_id=_HOSTILE, capacity={_HOSTILE: 3})
    run.actions = [past(_HOSTILE, KIND.ACTION_KIND_ENV_STEP, -9, 1, 1, reason=_HOSTILE, label=_HOSTILE)]
    names = {"job": _HOSTILE, "trajectory": _HOSTILE, "group": _HOSTILE, "manager": _HOSTILE, "version": "3"}
    for path in ("/now", "/job", "/trajectories", "/trajectory", "/group", "/step", "/engines", "/manager", "/what-if"):
        page = pages.get(path, params=names)
        assert page.status_code == 200, path
        assert "<img" not in page.text, path
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", page.text), path


def test_a_part_is_the_page_without_its_frame(pages: TestClient) -> None:
    whole, part = pages.get("/now").text, pages.get("/now", headers={"HX-Request": "true"}).text
    assert part.strip().startswith('<div id="live"')
    assert ("<html" in part, "Jobs" in part) == (False, True)
    landmarks = ("<nav", "<main", 'class="skip"', 'role="status"', "<caption>", 'scope="col"', 'lang="en"')
    assert _missing(whole, *landmarks) == []


def test_what_if_asks_what_its_form_says(run: MadeUpRun, pages: TestClient) -> None:
    run.status.nodes.add(node_id="n")
    assert "It helps." in _text(pages, "/what-if?pool=n&nodes=2")
    assert run.asked == [admin_service_pb2.WhatIfRequest(pool="n", nodes=2)]
    assert pages.get("/what-if?pool=n&nodes=-1").status_code == 400


def test_engines_tell_versions_kv_exposed_time_and_what_waits(run: MadeUpRun, pages: TestClient) -> None:
    manager = run.status.managers.add(manager_id="m", node_id="n", connected=True)
    manager.services.add(name="policy", slots=8).weights.version = 7
    manager.services.add(name="sandbox")
    manager.loads.add(
        service="policy", running=3, others_sequences=1, kv_tokens=1000, kv_tokens_booked=250, exposed_s=90
    )
    run.status.wanted.add(role="inference", waiting=12)
    text = _text(pages, "/engines")
    assert _missing(text, "m policy connected 7 unspecified 3 8 1 250 of 1,000 1 min 30 s", "inference 12") == []
    assert "m sandbox" not in text


def test_now_tells_held_against_used_by_node_and_service_and_failures_by_phase(
    run: MadeUpRun, pages: TestClient
) -> None:
    for name, services in (("m1", ("sandbox", "tests")), ("m2", ("policy",))):
        manager = run.status.managers.add(manager_id=name, node_id="n1")
        for service in services:
            load = manager.loads.add(service=service)
            load.cost.held["cpu"], load.cost.used["cpu"] = 100.0, 25.0
    ends = {STATE.ACTION_STATE_FAILED: "infra", STATE.ACTION_STATE_EXPIRED: "", STATE.ACTION_STATE_SUCCEEDED: ""}
    for number, (state, failure) in enumerate(ends.items(), start=3):
        run.status.ends.add(kind=KIND.ACTION_KIND_ENV_STEP, state=state, failure=failure, count=number)
    text = _text(pages, "/now")
    held = ("n1 cpu, core-seconds 300 75 (25 %)", "policy cpu, core-seconds 100 25 (25 %)")
    assert _missing(text, *held, "env_step expired 4 env_step failed infra 3") == []
    assert "succeeded 5" not in text
