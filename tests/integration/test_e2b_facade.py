"""The E2B facade with a real stack, by requests as E2B's clients send them: sandboxes, commands, files, their ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from callsheet.client import Client, NotFoundError
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack

from tests.support.e2b_servers import WAIT_S, CalledSandbox, E2bCaller, e2b_process
from tests.support.real_sandboxes import processes
from tests.support.stack_processes import wait_serving
from tests.support.swerex_servers import stack_of_sandboxes
from tests.support.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with stack_of_sandboxes(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture(scope="module")
async def address(stack: Stack) -> AsyncIterator[str]:
    async with e2b_process(stack.address, "--longest-timeout", "7200") as process:
        yield process.facts["address"]


@pytest.fixture
async def caller(address: str) -> AsyncIterator[E2bCaller]:
    async with aiohttp.ClientSession() as session:
        yield E2bCaller(session, address)


@pytest.fixture
async def sandbox(caller: E2bCaller) -> AsyncIterator[CalledSandbox]:
    made = await caller.create(envVars={"OWN": "of all"})
    yield made
    await caller.rest("DELETE", f"/sandboxes/{made.sandbox_id}")


async def begun(events: AsyncIterator[Any]) -> int:
    return int((await anext(events))["event"]["start"]["pid"])


async def test_commands_print_and_end(sandbox: CalledSandbox) -> None:
    stdout, stderr, end, closed = await sandbox.run(
        "echo $OWN $MORE; pwd; echo e >&2; exit 3", envs={"MORE": "x"}, cwd="/tmp"
    )
    assert (stdout, stderr) == ("of all x\n/tmp\n", "e\n")
    assert (end, closed) == ({"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"}, {})


async def test_a_command_makes_way_for_others_and_can_be_killed(sandbox: CalledSandbox) -> None:
    events = sandbox.start("echo begun; sleep 1000.0625")
    pid = await begun(events)
    listed = await sandbox.rpc("process.Process/List", {})
    assert [each["pid"] for each in listed[1]["processes"]] == [pid]
    assert (await sandbox.run("echo beside"))[0] == "beside\n"
    # Whoever connects gets what comes from then on.
    connected = sandbox.stream("process.Process/Connect", {"process": {"pid": pid}})
    assert await begun(connected) == pid
    signalled = {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}
    assert await sandbox.rpc("process.Process/SendSignal", signalled) == (200, {})
    ends = [message["event"]["end"]["exitCode"] async for message in connected if "end" in message.get("event", {})]
    assert ends == [-1]
    assert [message async for message in events][-1] == {}
    status, answer = await sandbox.rpc("process.Process/SendSignal", signalled)
    assert (status, answer["code"]) == (404, "not_found")


@pytest.mark.parametrize("shell", ["/bin/bash", "/bin/sh"])
@pytest.mark.parametrize("ends_by", ["timeout", "kill"])
async def test_what_a_command_began_ends_with_it(sandbox: CalledSandbox, shell: str, ends_by: str) -> None:
    """In its group, in groups of its jobs, in a session of its own, below a parent that is gone; bash and dash."""
    seconds = f"1000.{len(shell)}{len(ends_by)}"
    in_session = f"setsid sh -c 'sleep {seconds}; :' &"
    text = f"sleep {seconds} & {in_session} (set -m; sleep {seconds} & wait) & (sleep {seconds} &); wait"
    events = sandbox.start(text, timeout_s=1.5 if ends_by == "timeout" else None, cmd=shell)
    pid = await begun(events)
    await until(lambda: len(processes("sleep", seconds)) == 4)
    if ends_by == "kill":
        killed = {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}
        assert await sandbox.rpc("process.Process/SendSignal", killed) == (200, {})
    assert ("error" in [message async for message in events][-1]) == (ends_by == "timeout")
    await until(lambda: not processes("sleep", seconds))


async def test_input_is_written_and_ends(sandbox: CalledSandbox) -> None:
    config = {"cmd": "/bin/bash", "args": ["-c", "cat; echo end"]}
    events = sandbox.stream("process.Process/Start", {"process": config, "stdin": True})
    which = {"process": {"pid": await begun(events)}}
    assert await sandbox.rpc("process.Process/SendInput", {**which, "input": {"stdin": "aGkK"}}) == (200, {})
    assert await sandbox.rpc("process.Process/CloseStdin", which) == (200, {})
    data = [message["event"]["data"]["stdout"] async for message in events if "data" in message.get("event", {})]
    assert "".join(data) in {"aGkKZW5kCg==", "aGkK" + "ZW5kCg=="}


async def test_files_by_http(sandbox: CalledSandbox) -> None:
    form = aiohttp.FormData(quote_fields=False)
    for name in ("a/b", "a/c"):
        form.add_field("file", name.encode(), filename=name)
    status, written = await sandbox.plain("POST", "/files", data=form)
    assert (status, [each["name"] for each in json.loads(written)]) == (200, ["b", "c"])
    assert await sandbox.plain("GET", "/files", params={"path": "a/c"}) == (200, b"a/c")
    assert (await sandbox.plain("POST", "/files", params={"path": "d"}, data=b"\0"))[0] == 200
    _, listed = await sandbox.rpc("filesystem.Filesystem/ListDir", {"path": "a", "depth": 1})
    assert [each["name"] for each in listed["entries"]] == ["b", "c"]
    assert (await sandbox.plain("GET", "/files", params={"path": "no"}))[0] == 404
    status, answer = await sandbox.plain("GET", "/files", params={"path": "d", "username": "root"})
    assert (status, "root" in answer.decode()) == (400, True)


async def test_a_sandbox_ends_with_its_time_and_so_does_what_runs(caller: E2bCaller) -> None:
    sandbox = await caller.create()
    events = sandbox.start("sleep 1000", timeout_s=None)
    await begun(events)
    assert (await sandbox.plain("GET", "/health"))[0] == 204
    assert await caller.rest("POST", f"/sandboxes/{sandbox.sandbox_id}/timeout", {"timeout": 0}) == (204, None)
    closed = [message async for message in events][-1]
    assert closed["error"]["code"] == "unavailable"
    assert "was not found" in closed["error"]["message"]
    status, answer = await sandbox.plain("GET", "/health")
    assert (status, "was not found" in answer.decode()) == (502, True)
    status, answer = await sandbox.rpc("process.Process/List", {})
    assert (status, answer["code"]) == (502, "unavailable")
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/timeout"), ("POST", "/connect")):
        body = {"timeout": 1} if method == "POST" else None
        assert (await caller.rest(method, f"/sandboxes/{sandbox.sandbox_id}{path}", body))[0] == 404


async def paused(caller: E2bCaller, one: str) -> None:
    with anyio.fail_after(WAIT_S):
        while (await caller.rest("GET", one))[1]["state"] != "paused":
            await anyio.lowlevel.checkpoint()


async def test_a_paused_sandbox_stands_still_until_a_client_connects(caller: E2bCaller) -> None:
    sandbox = await caller.create(autoPause=True, metadata={"pauses": "yes"})
    one = f"/sandboxes/{sandbox.sandbox_id}"
    events = sandbox.start("until [ -e go ]; do sleep 0.1; done; echo went", timeout_s=None)
    await begun(events)
    assert await caller.rest("POST", f"{one}/timeout", {"timeout": 0}) == (204, None)
    await paused(caller, one)
    _, found = await caller.rest("GET", one)
    assert found["lifecycle"] == {"onTimeout": "pause", "autoResume": False}
    for state, ids in (("paused", [sandbox.sandbox_id]), ("running", []), ("running,paused", [sandbox.sandbox_id])):
        _, listed = await caller.rest("GET", f"/v2/sandboxes?metadata=pauses%3Dyes&state={state}")
        assert [each["sandboxID"] for each in listed] == ids
    assert (await sandbox.plain("GET", "/health"))[0] == 502
    status, answer = await sandbox.rpc("process.Process/List", {})
    assert (status, "it is paused" in answer["message"]) == (502, True)
    assert (await caller.rest("POST", f"{one}/pause", {}))[0] == 409
    assert (await caller.rest("POST", f"{one}/connect", {"timeout": 600}))[0] == 200
    assert (await sandbox.run("touch go"))[3] == {}
    printed = [message async for message in events if "data" in message.get("event", {})]
    assert len(printed) == 1
    assert await caller.rest("POST", f"{one}/pause", {}) == (204, None)
    assert await caller.rest("DELETE", one) == (204, None)


async def test_a_sleeping_sandbox_wakes_at_a_request_that_may_be_made(caller: E2bCaller) -> None:
    sandbox = await caller.create(autoPause=True, autoResume={"enabled": True})
    one = f"/sandboxes/{sandbox.sandbox_id}"
    await sandbox.run("echo kept > file")
    assert await caller.rest("POST", f"{one}/pause") == (204, None)
    assert (await sandbox.plain("GET", "/health"))[0] == 502
    refused = await sandbox.rpc("process.Process/List", {}, **{"X-Access-Token": "a-guess"})
    assert refused[1]["code"] == "unauthenticated"
    assert (await caller.rest("GET", one))[1]["state"] == "paused"
    assert await sandbox.plain("GET", "/files", params={"path": "file"}) == (200, b"kept\n")
    assert (await caller.rest("GET", one))[1]["state"] == "running"
    assert await caller.rest("DELETE", one) == (204, None)


async def test_sandboxes_are_found_by_metadata_and_page_by_page(caller: E2bCaller) -> None:
    made = [await caller.create(metadata={"run": "a b", "n": str(n)}) for n in range(2)]
    ids = [sandbox.sandbox_id for sandbox in made]
    _, found = await caller.rest("GET", "/v2/sandboxes?metadata=run%3Da%2520b&order=asc")
    assert [each["sandboxID"] for each in found] == ids
    _, found = await caller.rest("GET", "/v2/sandboxes?metadata=run%3Da%2520b&limit=1&nextToken=1")
    assert [each["sandboxID"] for each in found] == ids[:1]
    assert await caller.rest("GET", "/v2/sandboxes?state=paused") == (200, [])
    for sandbox_id in ids:
        assert await caller.rest("DELETE", f"/sandboxes/{sandbox_id}") == (204, None)


async def test_a_request_that_comes_again_makes_no_second_sandbox(caller: E2bCaller) -> None:
    found = []

    async def create() -> None:
        found.append(await caller.rest("POST", "/v2/sandboxes", {"templateID": "base"}, Idempotency_Key="one"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create)
        tasks.start_soon(create)
    assert [status for status, _ in found] == [201, 201]
    assert found[0][1] == found[1][1]
    await caller.rest("DELETE", f"/sandboxes/{found[0][1]['sandboxID']}")


async def test_nobody_gets_in_without_key_and_token(caller: E2bCaller, sandbox: CalledSandbox) -> None:
    one = f"/sandboxes/{sandbox.sandbox_id}"
    for method, path in (("POST", "/v2/sandboxes"), ("GET", "/sandboxes"), ("GET", one), ("DELETE", one)):
        status, answer = await caller.rest(method, path, key="a-guess")
        assert (status, answer["code"]) == (401, 401)
    token = sandbox.headers.pop("X-Access-Token")
    for given in ({}, {"X-Access-Token": ""}, {"X-Access-Token": token[:-1]}, {"X-Access-Token": "\u00e9"}):
        status, answer = await sandbox.rpc("filesystem.Filesystem/Stat", {"path": "/"}, **given)
        assert (status, answer["code"]) == (401, "unauthenticated")
        assert (await sandbox.plain("GET", "/files"))[0] == 401
    sandbox.headers["X-Access-Token"] = token


@pytest.mark.parametrize(
    ("path", "body", "status", "word"),
    [
        ("/v2/sandboxes", {"templateID": "base", "autoPause": True, "autoPauseMemory": False}, 501, "pause without"),
        ("/v2/sandboxes", {"templateID": "base", "mcp": {"x": 1}}, 501, "mcp"),
        ("/v2/sandboxes", {"templateID": "base", "timeout": 7201}, 400, "7201"),
        ("/v2/sandboxes", {"templateID": "no-such-image"}, 400, "no-such-image"),
        ("/v2/sandboxes", {"timeout": "x"}, 400, "templateID"),
        ("/v2/sandboxes", {"templateID": "base", "metadata": {"x": "y" * 70_000}}, 400, "metadata"),
        ("/sandboxes/x/pause", {"memory": False}, 501, "pause without"),
        ("/sandboxes/x/pause", {}, 404, "was not found"),
        ("/sandboxes/x/snapshots", {}, 501, "create_snapshot"),
        ("/sandboxes/x/other", {}, 404, "other"),
    ],
)
async def test_requests_that_cannot_be_served_are_refused_by_name(
    caller: E2bCaller, path: str, body: object, status: int, word: str
) -> None:
    found, answer = await caller.rest("POST", path, body)
    assert (found, word in answer["message"]) == (status, True), answer


@pytest.mark.parametrize(
    ("path", "body", "code", "word"),
    [
        ("filesystem.Filesystem/CreateWatcher", {"path": "."}, "unimplemented", "CreateWatcher"),
        ("filesystem.Filesystem/Stat", {"path": 7}, "invalid_argument", "path"),
        ("filesystem.Filesystem/Stat", {"path": "no"}, "not_found", "no"),
        ("filesystem.Filesystem/ListDir", {"path": ".", "depth": 10_000}, "invalid_argument", "depth"),
        ("process.Process/SendInput", {"process": {"pid": 1}}, "not_found", "process 1"),
    ],
)
async def test_rpcs_that_cannot_be_served_are_refused_by_name(
    sandbox: CalledSandbox, path: str, body: object, code: str, word: str
) -> None:
    _, answer = await sandbox.rpc(path, body)
    assert (answer["code"], word in answer["message"]) == (code, True), answer


@pytest.mark.parametrize(
    ("body", "code", "word"),
    [
        ({"process": {"cmd": "true"}, "pty": {}}, "unimplemented", "pty"),
        ({"process": {}}, "invalid_argument", "cmd"),
        ({"process": {"cmd": "true", "cwd": "/nowhere"}}, "invalid_argument", "/nowhere"),
        ({"process": {"cmd": "true", "envs": {"A=": "b"}}}, "invalid_argument", "A="),
    ],
)
async def test_commands_that_cannot_begin_say_why(sandbox: CalledSandbox, body: object, code: str, word: str) -> None:
    messages = [message async for message in sandbox.stream("process.Process/Start", body)]
    assert len(messages) == 1
    assert (messages[0]["error"]["code"], word in messages[0]["error"]["message"]) == (code, True), messages


async def test_a_lost_sandbox_is_not_there_any_more(stack: Stack, sandbox: CalledSandbox) -> None:
    killed = stack.pid(Role.SANDBOX)
    stack.supervisor(Role.SANDBOX).kill()
    await wait_serving(stack, Role.SANDBOX, other_than=killed)
    closed = (await sandbox.run("true"))[3]
    assert closed["error"]["code"] == "unavailable"
    assert "state_lost" in closed["error"]["message"]
    assert (await sandbox.plain("GET", "/health"))[0] == 502


async def test_a_facade_that_ends_closes_its_job(stack: Stack) -> None:
    async with e2b_process(stack.address, "--job-id", "ending") as process, aiohttp.ClientSession() as session:
        sandbox = await E2bCaller(session, process.facts["address"]).create()
        assert (await sandbox.run("echo x"))[0] == "x\n"
        os.kill(process.pid, signal.SIGTERM)
        assert await process.wait() == 0
    async with Client(stack.address) as client:
        with pytest.raises(NotFoundError):
            await client.job("ending").close()
