"""The facade between SWE-ReX's client and a real stack: runtimes, their ends, and what is no result."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anyio
import pytest
from callsheet.client import Client, NotFoundError
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack
from callsheet.managers.supervision.processes import ProcessFailedError
from swerex.exceptions import CommandTimeoutError, SessionNotInitializedError, SwerexException
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    WriteFileRequest,
)
from swerex.runtime.remote import RemoteRuntime

from tests.support.real_sandboxes import processes
from tests.support.stack_processes import wait_serving
from tests.support.swerex_servers import TOKEN, WAIT_S, facade_process, runtime_at, stack_of_sandboxes, until_alive
from tests.support.waiting import until

pytestmark = pytest.mark.anyio

SESSION = CreateBashSessionRequest(startup_timeout=60)


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with stack_of_sandboxes(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture(scope="module")
async def facade(stack: Stack) -> AsyncIterator[str]:
    """The address of a facade."""
    async with facade_process(stack.address, "--job-id", "rollouts") as process:
        yield process.facts["address"]


@pytest.fixture
async def runtime(facade: str) -> AsyncIterator[RemoteRuntime]:
    """A runtime of a name of its own."""
    opened = runtime_at(facade, f"t-{uuid.uuid4().hex[:8]}")
    yield opened
    await opened.close()


def step(command: str, timeout: float | None = WAIT_S, **options: Any) -> BashAction:
    return BashAction(command=command, timeout=timeout, **options)


async def post(facade: str, path: str, body: object, **headers: str) -> tuple[int, Any]:
    """Sends a request as no client of SWE-ReX would; returns status and body."""
    given = {"X-API-Key": TOKEN, **{name.replace("_", "-"): value for name, value in headers.items()}}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{facade}/{path}", json=body, headers=given) as response,
    ):
        return response.status, await response.json()


async def test_runtimes_have_sandboxes_of_their_own(facade: str) -> None:
    runtimes = [runtime_at(facade, f"apart-{number}") for number in range(4)]

    async def roll_out(number: int, runtime: RemoteRuntime) -> None:
        await until_alive(runtime)
        await runtime.create_session(SESSION)
        await runtime.run_in_session(step(f"echo {number} > mine; n={number}"))
        assert (await runtime.run_in_session(step("cat mine; echo $n; ls"))).output == f"{number}\n{number}\nmine\n"
        await runtime.close()

    async with anyio.create_task_group() as tasks:
        for number, runtime in enumerate(runtimes):
            tasks.start_soon(roll_out, number, runtime)


async def test_a_closed_runtime_is_gone_and_its_name_begins_anew(facade: str) -> None:
    runtime = runtime_at(facade, "again")
    await runtime.write_file(WriteFileRequest(path="kept", content="x"))
    await runtime.close()
    await runtime.close()
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path="kept"))
    await runtime.close()


async def test_nobody_gets_in_without_the_token(facade: str) -> None:
    stranger = runtime_at(facade, "closed", token="a-guess")
    answer = await stranger.is_alive()
    assert not answer
    assert "401" in answer.message
    with pytest.raises(aiohttp.ClientResponseError, match="401"):
        await stranger.execute(Command(command=["true"]))


async def test_a_step_is_interrupted_while_it_runs(runtime: RemoteRuntime) -> None:
    await runtime.create_session(SESSION)
    ended = []

    async def run() -> None:
        ended.append(await runtime.run_in_session(step("x=1; echo begun; sleep 1000.0625", check="silent")))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        await until(lambda: bool(processes("sleep", "1000.0625")))
        await runtime.run_in_session(BashInterruptAction())
    assert ended[0].exit_code != 0
    assert ended[0].failure_reason == "interrupted"
    assert (await runtime.run_in_session(step("echo alive"))).output == "alive\n"


async def test_a_shell_that_ended_runs_nothing_more(runtime: RemoteRuntime) -> None:
    await runtime.create_session(SESSION)
    ended = await runtime.run_in_session(step("echo last; exit 3", check="silent"))
    assert (ended.output, ended.exit_code) == ("last\n", 3)
    assert "ended" in ended.failure_reason
    with pytest.raises(SessionNotInitializedError):
        await runtime.run_in_session(step("touch ran"))
    await runtime.close_session(CloseBashSessionRequest())
    await runtime.create_session(SESSION)
    assert (await runtime.run_in_session(step("ls"))).output == ""


async def test_a_shell_that_was_killed_between_steps_is_not_replaced_silently(runtime: RemoteRuntime) -> None:
    await runtime.create_session(SESSION)
    await runtime.run_in_session(step("mkdir inner; cd inner; echo $$ > ../pid"))
    await runtime.execute(Command(command="kill -9 $(cat pid)", shell=True, check=True))
    with pytest.raises(SessionNotInitializedError):
        await runtime.run_in_session(step("touch ran"))
    assert (await runtime.execute(Command(command="ls -A . inner", shell=True))).stdout == ".:\ninner\npid\n\ninner:\n"


@pytest.mark.parametrize(
    "option", [{"is_interactive_command": True}, {"is_interactive_quit": True}, {"expect": [">>>"]}]
)
async def test_what_needs_a_terminal_is_refused(runtime: RemoteRuntime, option: dict[str, Any]) -> None:
    await runtime.create_session(SESSION)
    with pytest.raises(ValueError, match="no terminal"):
        await runtime.run_in_session(step("python3", **option))


async def test_startup_files_are_sourced(runtime: RemoteRuntime) -> None:
    await runtime.write_file(WriteFileRequest(path="setup.sh", content='[ -z "$PS1" ] && return\necho sourced; X=1\n'))
    request = CreateBashSessionRequest(startup_source=["./setup.sh", "./missing.sh"], startup_timeout=60)
    begun = await runtime.create_session(request)
    assert begun.output.startswith("sourced\n")
    assert "missing.sh" in begun.output
    assert (await runtime.run_in_session(step("echo $X"))).output == "1\n"
    await runtime.write_file(WriteFileRequest(path="hang.sh", content="sleep 1000"))
    hanging = CreateBashSessionRequest(session="hanging", startup_source=["./hang.sh"], startup_timeout=0.1)
    with pytest.raises(CommandTimeoutError):
        await runtime.create_session(hanging)
    await runtime.create_session(CreateBashSessionRequest(session="hanging", startup_timeout=60))


async def test_output_that_is_not_all_there_is_no_result(runtime: RemoteRuntime) -> None:
    flood = "head -c 20000000 /dev/zero | tr '\\0' x"
    with pytest.raises(SwerexException, match="more than"):
        await runtime.execute(Command(command=flood, shell=True))
    await runtime.execute(Command(command=f"{flood} > big", shell=True, check=True))
    with pytest.raises(SwerexException, match="more than"):
        await runtime.read_file(ReadFileRequest(path="big"))
    await runtime.create_session(SESSION)
    told = await runtime.run_in_session(step(flood))
    assert told.failure_reason.endswith("left out of the middle of the output")


async def test_a_request_that_comes_again_gets_the_first_answer(facade: str) -> None:
    body = {"command": "echo x >> lines; cat lines", "shell": True}
    answers = []

    async def ask() -> None:
        answers.append(await post(facade, "once/execute", body, X_Request_ID="one"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        tasks.start_soon(ask)
    await ask()
    assert answers == [(200, {"stdout": "x\n", "stderr": "", "exit_code": 0})] * 3
    assert (await post(facade, "once/execute", body, X_Request_ID="two"))[1]["stdout"] == "x\nx\n"


@pytest.mark.parametrize(
    ("path", "body", "status", "field"),
    [
        ("a/execute", {"command": 7}, 422, "command"),
        ("a/run_in_session", {"action_type": "python", "command": ""}, 422, "action_type"),
        ("a/no_such_verb", {}, 404, "Not Found"),
        ("a/images/other/execute", {"command": ["true"]}, 511, "other"),
        ("-bad/execute", {"command": ["true"]}, 511, "-bad"),
        ("a/execute", {"command": []}, 511, "argv"),
        ("a/execute", {"command": ["true"], "env": {"A=B": "c"}}, 511, "A=B"),
    ],
)
async def test_bad_requests_name_what_is_wrong(facade: str, path: str, body: object, status: int, field: str) -> None:
    if path.startswith("a/images"):
        await post(facade, "a/execute", {"command": ["true"]})
    found, answer = await post(facade, path, body)
    assert found == status
    assert field in str(answer)


async def test_a_lost_sandbox_is_an_error_and_stays_one(stack: Stack, facade: str) -> None:
    runtime = runtime_at(facade, "lost")
    await runtime.create_session(SESSION)
    await runtime.run_in_session(step("touch there"))
    killed = stack.pid(Role.SANDBOX)
    stack.supervisor(Role.SANDBOX).kill()
    await wait_serving(stack, Role.SANDBOX, other_than=killed)
    with pytest.raises(SwerexException, match="state_lost") as caught:
        await runtime.run_in_session(step("ls"))
    assert caught.value.extra_info["kind"] == "infra"  # type: ignore[attr-defined]
    alive = await runtime.is_alive()
    assert not alive
    assert "state_lost" in alive.message
    with pytest.raises(SwerexException, match="state_lost"):
        await runtime.execute(Command(command=["true"]))
    await runtime.close()
    assert (await runtime.execute(Command(command=["echo", "fresh"]))).stdout == "fresh\n"
    await runtime.close()


async def test_a_sandbox_that_cannot_be_set_up_is_not_alive(stack: Stack) -> None:
    async with facade_process(stack.address, "--set-up", "echo broken >&2; exit 3") as process:
        runtime = runtime_at(process.facts["address"], "broken")
        with pytest.raises(SwerexException, match="set_up_failed"):
            await runtime.create_session(SESSION)
        alive = await runtime.is_alive()
        assert not alive
        assert "set_up_failed" in alive.message


async def test_a_facade_that_ends_closes_its_job(stack: Stack) -> None:
    async with facade_process(stack.address, "--job-id", "ending") as process:
        assert (await runtime_at(process.facts["address"]).execute(Command(command=["echo", "x"]))).stdout == "x\n"
        os.kill(process.pid, signal.SIGTERM)
        assert await process.wait() == 0
    async with Client(stack.address) as client:
        with pytest.raises(NotFoundError):
            await client.job("ending").close()


async def test_a_facade_says_what_is_wrong_with_its_options(stack: Stack) -> None:
    with pytest.raises(ProcessFailedError, match="exit code 2"):
        async with facade_process(stack.address, "--no-auth"):
            pass
    with pytest.raises(ProcessFailedError, match="exit code 2"):
        async with facade_process(stack.address, "--listen", "nowhere"):
            pass
