"""State between actions through the whole service: sessions, downloads, output while a command runs."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import anyio
import anyio.to_thread
import pytest
from callsheet.client import (
    Cancelled,
    Client,
    Command,
    CommandResult,
    DownloadedFile,
    EnvStep,
    Job,
    Outcome,
    OutputChunk,
    OutputStream,
    SandboxFile,
    SessionReport,
    Succeeded,
    SyncClient,
    Trajectory,
)
from callsheet.deploy.stack import Stack
from callsheet.managers.sandbox.commands.live_output import LONGEST_CHUNK

from tests.support.real_sandboxes import sandbox_stack

pytestmark = pytest.mark.anyio

ANSWER_S = 60.0


@pytest.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with sandbox_stack(tmp_path_factory.mktemp("stack")) as stack:
        yield stack


@pytest.fixture
async def job(stack: Stack) -> AsyncIterator[Job]:
    async with Client(stack.address) as client, await client.open_job(uuid.uuid4().hex) as job:
        yield job


@pytest.fixture
async def trajectory(job: Job) -> AsyncIterator[Trajectory]:
    """A trajectory with a sandbox."""
    async with job.trajectory("t") as trajectory:
        (await trajectory.env_reset(service="sandbox")).unwrap()
        yield trajectory


def result(outcome: Outcome[CommandResult]) -> CommandResult:
    assert isinstance(outcome, Succeeded), outcome
    return outcome.value


async def test_a_session_keeps_its_state_between_actions(trajectory: Trajectory) -> None:
    first = result(await trajectory.env_step(Command.shell("mkdir src; cd src; x=1"), session="main"))
    assert first.session == SessionReport(started=True)
    plain = result(await trajectory.env_step(Command.shell("ls")))
    assert (plain.stdout, plain.session) == (b"src\n", None)
    second = result(await trajectory.env_step(Command.shell("basename $PWD; echo $x; false"), session="main"))
    assert (second.stdout, second.exit_code, second.session) == (b"src\n1\n", 1, SessionReport())
    code = result(await trajectory.env_step(Command.python("import os\nos.listdir()"), session="main"))
    assert code.stdout == b"['src']\n"
    fresh = result(await trajectory.env_step(Command.python("print('fresh')")))
    assert (fresh.stdout, fresh.session) == (b"fresh\n", None)


async def test_files_go_in_and_come_back(trajectory: Trajectory) -> None:
    large = bytes(range(256)) * 4096
    outcome = await trajectory.env_step(
        Command.shell("tr a b < in > out; ln -s /etc/passwd link"),
        files=[SandboxFile("in", b"aXa"), SandboxFile("dir/large", large)],
        download=["out", "dir/large", "missing", "link", "dir"],
    )
    assert result(outcome).downloads == (
        DownloadedFile("out", b"bXb"),
        DownloadedFile("dir/large", large),
        DownloadedFile("missing", None, "missing"),
        DownloadedFile("link", None, "not_a_file"),
        DownloadedFile("dir", None, "not_a_file"),
    )


async def test_a_command_that_fails_returns_its_files(trajectory: Trajectory) -> None:
    outcome = await trajectory.env_step(Command.shell("echo why > log; exit 3"), session="main", download=["log"])
    assert (result(outcome).exit_code, result(outcome).downloads) == (3, (DownloadedFile("log", b"why\n"),))
    assert result(outcome).session == SessionReport(started=True, ended=True)


@pytest.mark.parametrize("session", ["", "main"])
async def test_output_comes_while_the_command_runs(trajectory: Trajectory, session: str) -> None:
    # It does not end by itself: what is heard is heard while it runs.
    endless = Command.shell("echo one; while :; do sleep 1000; done")
    handle = await trajectory.submit(EnvStep(endless, session=session, stream_output=True))
    with anyio.fail_after(ANSWER_S):
        async for chunk in handle.output():
            assert chunk == OutputChunk(OutputStream.STDOUT, b"one\n")
            break
        await handle.cancel("heard enough")
        # A shell says on stderr that its child was killed.
        assert {chunk.stream async for chunk in handle.output()} <= {OutputStream.STDERR}
        outcome = await handle.outcome()
    assert isinstance(outcome, Cancelled)
    assert outcome.partial is not None
    assert outcome.partial.stdout == b"one\n"


async def test_a_flood_is_dropped_and_said_so(trajectory: Trajectory) -> None:
    flood = Command.shell("head -c 30000000 /dev/zero; sleep 0.3; echo end")
    handle = await trajectory.submit(EnvStep(flood, stream_output=True))
    with anyio.fail_after(ANSWER_S):
        chunks = [chunk async for chunk in handle.output()]
        whole = result(await handle.outcome())
    heard, told = 0, 0
    for chunk in chunks:
        told += chunk.dropped_bytes
        assert chunk.offset == told
        heard += len(chunk.content)
        told += len(chunk.content)
    # What was dropped after the last part is told by the result alone.
    assert told <= 30_000_004
    assert heard <= LONGEST_CHUNK * (10 * whole.wall_s + 2)
    assert whole.stdout.endswith(b"end\n")
    assert len(whole.stdout) + whole.stdout_dropped_bytes == 30_000_004


async def test_nothing_comes_unless_asked_for(trajectory: Trajectory) -> None:
    handle = await trajectory.submit(EnvStep(Command.shell("echo out")))
    assert [chunk async for chunk in handle.output()] == []
    assert result(await handle.outcome()).stdout == b"out\n"


async def test_the_blocking_client_hears_output_too(stack: Stack) -> None:
    def listen() -> tuple[bytes, bytes]:
        with (
            SyncClient(stack.address) as client,
            client.open_job(uuid.uuid4().hex) as job,
            job.trajectory("t") as trajectory,
        ):
            trajectory.env_reset(service="sandbox")
            handle = trajectory.submit(EnvStep(Command.shell("echo one; sleep 0.2; echo two"), stream_output=True))
            heard = b"".join(chunk.content for chunk in handle.output())
            return heard, result(trajectory.env_step(Command.shell("echo three"), session="main")).stdout

    assert await anyio.to_thread.run_sync(listen) == (b"one\ntwo\n", b"three\n")
