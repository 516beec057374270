"""A long job goes on with another token: its file is read anew, and what is open stays open."""

from __future__ import annotations

import logging
from pathlib import Path

import anyio
import grpc
import grpc.aio
import pytest
from callsheet.client import Client, ClientOptions, RefusedError, Succeeded, ToolCall, Unservable
from callsheet.client.errors import InvalidArgumentError
from callsheet.credentials.channel import Credentials
from callsheet.credentials.token import FileToken
from callsheet.deploy import tokens
from callsheet.scheduler.access.identity import Scope
from callsheet.v1 import client_service_pb2
from structlog.testing import capture_logs

from tests.support.guarded_service import caller, guarded_scheduler
from tests.support.raw_service import running_noop
from tests.support.waiting import until, until_so

_DEADLINE_S = 60.0


@pytest.mark.anyio
@pytest.mark.parametrize("replaced", [True, False])
async def test_a_job_goes_on_with_another_token(tmp_path: Path, replaced: bool) -> None:
    kept = tmp_path / "job.token"
    with capture_logs() as lines, anyio.fail_after(_DEADLINE_S):
        async with guarded_scheduler(tmp_path) as guarded:
            former = guarded.issue(Scope.JOB, "mine")
            kept.write_text(f"{former}\n")
            environ = {"CALLSHEET_SCHEDULER": guarded.address, "CALLSHEET_TOKEN_FILE": str(kept)}
            async with Client.from_env(environ) as client:
                job = await client.open_job("mine")
                # Nobody serves it before its token has ended.
                waiting = await job.submit(ToolCall("noop", "call"), unservable=Unservable.WAIT)
                if replaced:
                    kept.write_text(guarded.issue(Scope.JOB, "mine"))
                tokens.revoke(guarded.tokens.path, former.split("_")[1])
                await until(lambda: any(line["event"] == "stream_ended" for line in lines), every_s=0.05)
                if not replaced:
                    with pytest.raises(RefusedError, match="UNAUTHENTICATED"):
                        await waiting.outcome()
                    return
                credentials = Credentials(token=guarded.issue(Scope.MANAGER, "m"))
                async with running_noop(guarded.address, credentials=credentials):
                    assert isinstance(await waiting.outcome(), Succeeded)
                    assert [each.job_id for each in await client.jobs()] == ["mine"]


@pytest.mark.anyio
@pytest.mark.parametrize("finished", [True, False], ids=["answered", "still waiting"])
async def test_a_wait_under_a_revoked_token_gets_no_batch(tmp_path: Path, finished: bool) -> None:
    """The batch is free at once for a valid token: it is not leased to the caller that was refused."""
    with anyio.fail_after(_DEADLINE_S):
        async with guarded_scheduler(tmp_path) as guarded:
            former = guarded.issue(Scope.JOB, "mine")
            valid = {"CALLSHEET_SCHEDULER": guarded.address, "CALLSHEET_TOKEN": guarded.issue(Scope.JOB, "mine")}
            async with Client.from_env(valid) as client, caller(guarded.address, former) as turned:
                job = await client.open_job("mine")
                async with job.trajectory("t") as trajectory:
                    take = client_service_pb2.TakeBatchRequest(job_id="mine", batch_id="b", at_least=1, at_most=1)
                    take.wait.FromSeconds(600)
                    call = turned.client.TakeBatch(take, metadata=turned.metadata, timeout=2 * _DEADLINE_S)
                    await until_so(client.jobs, lambda it: it[0].buffer.waiting_takers, every_s=0.05)
                    tokens.revoke(guarded.tokens.path, former.split("_")[1])
                    if finished:
                        await trajectory.finish(1.0)
                    with pytest.raises(grpc.aio.AioRpcError) as caught:
                        await call
                    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                    if not finished:
                        await trajectory.finish(1.0)
                batch = await job.take_batch(wait_s=_DEADLINE_S)
                assert [sample.trajectory_id for sample in batch.trajectories] == ["t"]


def test_a_token_is_good_until_its_file_holds_another(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept, token = tmp_path / "token", FileToken()
    with pytest.raises(OSError, match="token"):
        token.read(str(kept))
    kept.write_text(" one\n")
    assert token.read(str(kept)) == "one"
    with caplog.at_level(logging.WARNING, "callsheet.credentials"):
        kept.write_text("")
        assert token.read(str(kept)) == "one"
        kept.unlink()
        assert token.read(str(kept)) == "one"
        assert len(caplog.records) == 1
        kept.write_text("two")
        assert token.read(str(kept)) == "two"
        kept.write_text("half\na file")
        assert token.read(str(kept)) == "two"
    assert len(caplog.records) == 2
    assert "half" not in caplog.text


@pytest.mark.parametrize(
    ("content", "rule"),
    [(b"", "is empty"), (b"two\nlines", "one word of ASCII"), ("t\u00f6ken".encode(), "ASCII"), (b"\xff", "no text")],
)
def test_what_is_no_token_is_refused_before_it_is_sent(tmp_path: Path, content: bytes, rule: str) -> None:
    kept = tmp_path / "token"
    kept.write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=rule) as caught:
        Client.from_env({"CALLSHEET_TOKEN_FILE": str(kept)})
    assert "CALLSHEET_TOKEN_FILE" in str(caught.value)
    if content and rule != "no text":
        with pytest.raises(InvalidArgumentError, match="CALLSHEET_TOKEN") as caught:
            Client.from_env({"CALLSHEET_TOKEN": content.decode()})
        assert content.decode() not in str(caught.value)
        with pytest.raises(InvalidArgumentError, match="token"):
            ClientOptions(token=content.decode())


@pytest.mark.anyio
async def test_a_client_names_the_file_that_holds_no_token(tmp_path: Path) -> None:
    for path in (tmp_path / "missing", tmp_path):
        async with Client("127.0.0.1:1", ClientOptions(token_file=str(path))) as client:
            with pytest.raises(InvalidArgumentError, match="must be a file with a token") as caught:
                await client.open_job("j")
            assert str(path) in str(caught.value)
