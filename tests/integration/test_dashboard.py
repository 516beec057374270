"""The dashboard before a real scheduler: what each viewer sees and may do, and what no web page may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from callsheet.credentials.channel import Credentials
from callsheet.credentials.sandboxes import sandbox_source
from callsheet.dashboard.viewer import TOKEN_COOKIE
from callsheet.managers.noop import NoopSettings
from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import action_pb2, admin_service_pb2, client_service_pb2, common_pb2

from tests.support.dashboards import Browser, browser, running_dashboard
from tests.support.guarded_service import Caller, caller, guarded_scheduler, open_job
from tests.support.ports import free_port
from tests.support.raw_service import running_noop, running_service
from tests.support.waiting import until_so

pytestmark = pytest.mark.anyio
_WAIT_S = 100.0
_EVIL = "a</script><script>alert(1)</script>"
_PAGES = ("/stuck", "/now", "/engines", "/what-if", "/job?job=mine", "/action?job=mine&action=a", "/nothing", "/login")


async def stuck_action(peer: Caller, job_id: str, action_id: str = "a") -> None:
    """Opens a job with an action that no manager here ever runs."""
    await peer(peer.client.OpenJob, open_job(job_id))
    action = action_pb2.ActionSpec(
        job_id=job_id,
        action_id=action_id,
        unservable=action_pb2.UNSERVABLE_WAIT,
        generate=action_pb2.GenerateInput(
            prompt_token_ids=[1], sampling=action_pb2.SamplingParameters(max_new_tokens=1)
        ),
    )
    await peer(peer.client.SubmitAction, client_service_pb2.SubmitActionRequest(action=action))


def _explain(job_id: str, action_id: str) -> admin_service_pb2.ExplainRequest:
    return admin_service_pb2.ExplainRequest(key=common_pb2.ActionKey(job_id=job_id, action_id=action_id))


def audited(directory: Path) -> list[dict[str, Any]]:
    """What the audit has."""
    files = [path for path in directory.rglob("*.jsonl") if "audit" in path.name]
    return [json.loads(line) for path in files for line in path.read_text().splitlines()]


async def test_without_tokens_pages_tell_why_an_action_waits_and_cancel_it(tmp_path: Path) -> None:
    with anyio.fail_after(_WAIT_S):
        async with (
            running_service(SchedulerSettings(tmp_path / "data", "127.0.0.1:0")) as service,
            running_dashboard(service.address) as url,
            browser(url) as viewer,
            caller(service.address) as peer,
        ):
            empty = (await viewer.get("/now")).text
            assert "No job is open" in empty
            assert "No manager has registered" in empty
            await stuck_action(peer, "mine", _EVIL)
            await stuck_action(peer, "another", "b")
            told = await peer(peer.admin.Explain, _explain("mine", _EVIL))
            page = await viewer.shown("/stuck", told.explanation)
            assert "no service" in page.text
            assert "<script>alert" not in page.raw
            only = (await viewer.get("/stuck", job="another")).text
            assert "action=b" in only
            assert "alert" not in only
            query = {"job": "mine", "action": _EVIL}
            assert "Cancel this action" in (await viewer.get("/action", **query)).text
            assert "queued" in (await viewer.get("/cancel", **query)).text
            done = await viewer.post("/cancel", **query)
            assert done.status == 303
            assert "cancelled" in (await viewer.get(done.headers["Location"])).text
            assert (await viewer.post("/close", job="mine")).status == 303
            assert "job=mine" not in (await viewer.get("/now")).text
            assert "This job is closed." in (await viewer.get("/job", job="mine")).text
            assert (await viewer.get("/job", job="never")).status == 404
        assert "close" in {each["act"] for each in audited(tmp_path)}


async def test_with_tokens_each_viewer_sees_and_does_what_the_scheduler_lets_the_token(tmp_path: Path) -> None:
    with anyio.fail_after(_WAIT_S):
        async with guarded_scheduler(tmp_path) as guarded, running_dashboard(guarded.address) as url:
            admin, reader = guarded.issue(Scope.ADMIN), guarded.issue(Scope.READ_ONLY)
            mine, manager = guarded.issue(Scope.JOB, "mine"), guarded.issue(Scope.MANAGER, "m")
            async with (
                running_noop(guarded.address, NoopSettings(), credentials=Credentials(token=manager)),
                caller(guarded.address, admin) as operator,
                browser(url) as nobody,
                browser(url) as job,
                browser(url) as looker,
                browser(url) as boss,
            ):
                await stuck_action(operator, "mine")
                await stuck_action(operator, "theirs")
                await _nobody_sees_anything(nobody, manager)
                await _a_job_sees_itself_alone(job, mine)
                await _a_reader_changes_nothing(looker, reader)
                assert (await boss.log_in(admin)).status == 303
                assert "Drain this manager" in (await boss.get("/manager", manager="m")).text
                assert "0 attempts" in (await boss.get("/drain", manager="m")).text
                assert (await boss.post("/drain", manager="m", within="x")).status == 400
                assert (await boss.post("/drain", manager="m", within="0")).status == 303
                guarded.revoke(admin)
                await anyio.sleep(1.1)  # What is shared is older than that.
                assert (await boss.get("/now")).status == 303
        acts = {(each["act"], each.get("scope"), each.get("result")) for each in audited(tmp_path)}
        assert ("drain", "admin", "OK") in acts
        assert ("drain", "read-only", "PERMISSION_DENIED") in acts
        for path in (tmp_path / "data").rglob("*.log"):
            assert admin not in path.read_text()


async def _nobody_sees_anything(nobody: Browser, wrong: str) -> None:
    for path in ("/", *_PAGES[:-2]):
        answer = await nobody.get(path)
        assert answer.status in {303, 307}, path
        assert "mine" not in answer.raw
    assert (await nobody.get("/now", {"HX-Request": "true"})).headers["HX-Redirect"] == "/login?next=%2Fnow"
    for bad in ("", "cs_0000_1111", "two words", "\u00e9", "x" * 2000, f"{wrong}x"):
        answer = await nobody.post("/login", token=bad)
        assert answer.status == 403
        assert "Set-Cookie" not in answer.headers
        assert not bad or bad not in answer.text
    assert (await nobody.get("/now")).status == 303


async def _a_job_sees_itself_alone(job: Browser, token: str) -> None:
    cookie = (await job.log_in(token)).headers["Set-Cookie"]
    name, _, kept = cookie.partition("=")
    assert name.startswith(f"{TOKEN_COOKIE}_")
    assert kept.startswith(f"{token};")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    for path in ("/now", "/stuck", "/job?job=mine", "/action?job=mine&action=a"):
        page = await job.get(path)
        assert page.status == 200, path
        assert "mine" in page.text
        assert "theirs" not in page.text
        assert token not in page.text
    for path in ("/job?job=theirs", "/action?job=theirs&action=a", "/manager?manager=m", "/what-if"):
        page = await job.get(path)
        assert page.status == 403, path
        assert "PERMISSION_DENIED" in page.text
    assert (await job.post("/close", job="theirs")).status == 403
    assert (await job.post("/cancel", job="theirs", action="a")).status == 403
    assert (await job.post("/cancel", job="mine", action="a")).status == 303
    assert (await job.post("/logout")).status == 303
    assert (await job.get("/now")).status == 303


async def _a_reader_changes_nothing(looker: Browser, token: str) -> None:
    assert (await looker.log_in(token)).status == 303
    assert "Drain" not in (await looker.get("/manager", manager="m")).text
    for path, fields in (
        ("/drain", {"manager": "m"}),
        ("/close", {"job": "theirs"}),
        ("/cancel", {"job": "theirs", "action": "a"}),
    ):
        answer = await looker.post(path, **fields)
        assert answer.status == 403
        assert "PERMISSION_DENIED" in answer.text
    assert "theirs" in (await looker.get("/now")).text


async def test_no_web_page_of_others_acts_or_reads(tmp_path: Path) -> None:
    with anyio.fail_after(_WAIT_S):
        async with (
            running_service(SchedulerSettings(tmp_path / "data", "127.0.0.1:0")) as service,
            running_dashboard(service.address) as url,
            browser(url) as viewer,
            caller(service.address) as peer,
        ):
            await peer(peer.client.OpenJob, open_job("mine"))
            other = url.replace("127.0.0.1", "localhost")
            for origin in ("http://page.example", "null", other, url.replace("http:", "https:"), f"{url}0"):
                assert (await viewer.post("/close", {"Origin": origin}, job="mine")).status == 403, origin
            rebound = {"Host": "page.example", "Origin": "http://page.example"}
            assert (await viewer.post("/close", rebound, job="mine")).status == 403
            assert (await viewer.get("/now", {"Host": "page.example"})).status == 403
            for path in _PAGES:
                assert (await viewer.get(path)).status in {200, 404}
            assert (await viewer.get("/close", job="mine")).status == 200
            assert (await viewer.post("/now")).status == 405
            assert (await viewer.post("/close", job="x" * 100_000)).status == 413
            assert (await viewer.post("/close", **{str(each): "" for each in range(50)})).status == 400
            host, port = url.removeprefix("http://").split(":")
            # Programs without an origin, and code of models in sandboxes, are no pages of ours.
            form = b"job=mine"
            for source, origin in (("127.0.0.1", ""), (sandbox_source("j", "t"), f"Origin: {url}\r\n")):
                head = f"POST /close HTTP/1.1\r\nHost: {host}:{port}\r\n{origin}Content-Length: {len(form)}\r\n\r\n"
                async with await anyio.connect_tcp(host, int(port), local_host=source) as stream:
                    await stream.send(head.encode() + form)
                    assert b" 403 " in (await stream.receive()).partition(b"\r\n")[0], source
            assert "job=mine" in (await viewer.get("/now")).text


async def test_an_open_redirect_is_none(tmp_path: Path) -> None:
    with anyio.fail_after(_WAIT_S):
        async with (
            running_service(SchedulerSettings(tmp_path / "data", "127.0.0.1:0")) as service,
            running_dashboard(service.address) as url,
            browser(url) as viewer,
        ):
            for wanted in ("//page.example", "/\\page.example", "http://page.example", "/a\r\nSet-Cookie: x=y", "x"):
                answer = await viewer.post("/theme", next=wanted, theme="dark")
                assert answer.headers["Location"] == "/", wanted
            assert (await viewer.post("/theme", next="/now?x=1", theme="dark")).headers["Location"] == "/now?x=1"
            assert 'data-theme="dark"' in (await viewer.get("/now")).raw


async def test_a_scheduler_that_is_away_is_told_and_found_again(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with anyio.fail_after(_WAIT_S):
        async with running_dashboard(address) as url, browser(url) as viewer:
            page = await viewer.get("/now")
            assert page.status == 503
            assert "does not answer" in page.text
            part = await viewer.get("/now", {"HX-Request": "true"})
            assert (part.status, "<" in part.raw) == (503, False)
            async with running_service(SchedulerSettings(tmp_path / "data", address)):
                await until_so(lambda: viewer.get("/now"), lambda it: it.status == 200, every_s=0.1)


async def test_what_ended_is_counted_by_phase_and_by_service(tmp_path: Path) -> None:
    with anyio.fail_after(_WAIT_S):
        async with (
            running_service(SchedulerSettings(tmp_path / "data", "127.0.0.1:0")) as service,
            running_noop(service.address, NoopSettings()),
            running_dashboard(service.address) as url,
            browser(url) as viewer,
            caller(service.address) as peer,
        ):
            await stuck_action(peer, "mine")
            await service.outcome("mine", "a")
            status = await peer(peer.admin.GetStatus, admin_service_pb2.GetStatusRequest())
            (ended,) = status.ends
            assert (ended.kind, ended.count) == (action_pb2.ACTION_KIND_GENERATE, 1)
            (load,) = status.managers[0].loads
            assert load.service == status.managers[0].services[0].name
            assert f">{load.service}<" in (await viewer.shown("/now", "Held against used by service")).raw


async def test_a_dashboard_that_is_cancelled_leaves_no_socket_in_the_loop() -> None:
    with anyio.fail_after(_WAIT_S):
        for _ in range(3):
            with anyio.CancelScope() as scope:
                async with running_dashboard("127.0.0.1:1") as url, browser(url) as viewer:
                    assert (await viewer.get("/login")).status == 200
                    scope.cancel()
                    await anyio.sleep_forever()
            assert scope.cancelled_caught
