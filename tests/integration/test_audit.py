"""Who did what to a scheduler, as `callsheet audit` reads it back; with tokens and without."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio
import grpc
import pytest
from callsheet.credentials.channel import Credentials
from callsheet.managers.noop import NoopSettings
from callsheet.scheduler.access.identity import Scope
from callsheet.scheduler.service.settings import SchedulerSettings
from callsheet.v1 import admin_service_pb2, client_service_pb2, job_pb2

from tests.support.command_line import invoke
from tests.support.guarded_service import Caller, caller, guarded_scheduler, key, open_job
from tests.support.raw_service import RawService, running_noop, running_service

ITEM = client_service_pb2.ClientItem
_TIMEOUT_S = 60


async def command(*words: str) -> tuple[int, str, str]:
    """What a command exits with and prints."""
    with anyio.fail_after(_TIMEOUT_S):
        done = await anyio.run_process([sys.executable, "-m", "callsheet.cli.main", *words], check=False)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


async def audit(data_dir: Path, tokens: Path, *more: str) -> list[dict[str, Any]]:
    """The lines that the command prints."""
    code, out, err = await command("audit", "--data-dir", str(data_dir), "--tokens", str(tokens), "--json", *more)
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def told(lines: list[dict[str, Any]], *fields: str) -> list[tuple[Any, ...]]:
    return [tuple(line.get(field, "") for field in fields) for line in lines]


async def acts_of_a_job(peer: Caller, other: str) -> None:
    """A job's program: what it may do, and what it may not."""
    client, work = peer.client, client_service_pb2.CancelWorkRequest
    await peer(client.OpenJob, open_job("mine"))
    await peer(client.CancelWork, work(job_id="mine", reason="a secret of mine"))
    for rpc, request in (
        (client.CloseJob, client_service_pb2.CloseJobRequest(job_id=other)),
        (client.CancelWork, work(job_id=other, trajectory_id="t")),
        (client.CancelAction, client_service_pb2.CancelActionRequest(key=key(other))),
        (client.PublishPolicyVersion, client_service_pb2.PublishPolicyVersionRequest(job_id=other, version=1)),
        (peer.admin.DrainManager, admin_service_pb2.DrainManagerRequest(manager_id="m")),
        (peer.admin.HealManager, admin_service_pb2.HealManagerRequest(manager_id="m")),
    ):
        code, _ = await peer.refused(rpc, request)
        assert code is grpc.StatusCode.PERMISSION_DENIED
    items = [
        ITEM(sequence=1, cancel=client_service_pb2.CancelActionRequest(key=key(other))),
        ITEM(sequence=2, close_job="mine"),
    ]
    call = client.ClientSession(metadata=peer.metadata, timeout=_TIMEOUT_S)
    await call.write(client_service_pb2.ClientSessionRequest(items=items))
    answered: set[int] = set()
    while answered < {1, 2}:
        answer = await call.read()
        answered.update(answer.accepted, (result.sequence for result in answer.results))
    call.cancel()


async def test_what_each_caller_did_is_read_back_with_its_result(tmp_path: Path) -> None:
    async with guarded_scheduler(tmp_path) as guarded:
        admin, job = guarded.issue(Scope.ADMIN), guarded.issue(Scope.JOB, "mine")
        credentials = Credentials(token=guarded.issue(Scope.MANAGER, "m"))
        async with (
            running_noop(guarded.address, NoopSettings(), credentials=credentials),
            caller(guarded.address, admin) as operator,
            caller(guarded.address, job) as program,
        ):
            await operator(operator.client.OpenJob, open_job("theirs"))
            await acts_of_a_job(program, "theirs")
            publish = client_service_pb2.PublishPolicyVersionRequest(job_id="theirs", version=4)
            await operator(operator.client.PublishPolicyVersion, publish)
            await operator(operator.client.CloseJob, client_service_pb2.CloseJobRequest(job_id="theirs"))
            drain = admin_service_pb2.DrainManagerRequest
            await operator(operator.admin.DrainManager, drain(manager_id="m", dry_run=True))
            await operator(operator.admin.DrainManager, drain(manager_id="m", deadline_s=60.0))
            assert (await operator.refused(operator.admin.DrainManager, drain(manager_id="gone")))[0]
    # The scheduler wrote what was left as it ended.
    data, tokens = tmp_path / "data", guarded.tokens.path
    token_id = job.split("_")[1]
    revoked, out, err = await command("token", "revoke", token_id, "--tokens", str(tokens))
    assert (revoked, out) == (0, ""), err
    found = await audit(data, tokens)
    denied = "PERMISSION_DENIED"
    assert told(found, "act", "scope", "subject", "job_id", "manager", "result") == [
        ("cancel", "job", "mine", "mine", "", "OK"),
        ("close", "job", "mine", "theirs", "", denied),
        ("cancel", "job", "mine", "theirs", "", denied),
        ("cancel", "job", "mine", "theirs", "", denied),
        ("publish", "job", "mine", "theirs", "", denied),
        ("drain", "job", "mine", "", "", denied),
        ("heal", "job", "mine", "", "", denied),
        ("cancel", "job", "mine", "theirs", "", denied),
        ("close", "job", "mine", "mine", "", "OK"),
        ("publish", "admin", "", "theirs", "", "OK"),
        ("close", "admin", "", "theirs", "", "OK"),
        ("drain", "admin", "", "", "m", "OK"),
        ("drain", "admin", "", "", "gone", "NOT_FOUND"),
        ("revoke", "user", str(os.geteuid()), "", "", "OK"),
    ]
    assert all(line["peer"].startswith("ipv4:127.0.0.1:") for line in found[:-1])
    assert {line["token"] for line in found[:9]} == {token_id}
    assert found[-1]["of_token"] == token_id
    # No secret, and no text of a request.
    kept = "".join(path.read_text() for path in (data / "audit.jsonl", tokens.with_suffix(".audit.jsonl")))
    assert "a secret of mine" not in kept
    assert not any(token.split("_")[2] in kept for token in (admin, job))
    # By act, by job, by token, and the last ones.
    assert told(await audit(data, tokens, "--act", "drain"), "scope") == [("job",), ("admin",), ("admin",)]
    assert told(await audit(data, tokens, "--job", "theirs"), "job_id") == [("theirs",)] * 7
    assert len(await audit(data, tokens, "--token", token_id)) == 10
    assert told(await audit(data, tokens, "-n", "1"), "act") == [("revoke",)]


async def raw(service: RawService) -> None:
    await service.ask(ITEM(open_job=job_pb2.JobSpec(job_id="j")))
    assert await service.ask(ITEM(close_job="other")) is not None
    assert await service.stream(ITEM(close_job="j")) == [None]


async def test_without_tokens_a_line_says_from_where_and_a_restart_goes_on(tmp_path: Path) -> None:
    for _ in range(2):
        async with running_service(SchedulerSettings(tmp_path, listen="127.0.0.1:0")) as service:
            await raw(service)
    found = await audit(tmp_path, tmp_path / "tokens.json")
    assert (
        told(found, "act", "scope", "token", "job_id", "result")
        == [
            ("close", "", "", "other", "NOT_FOUND"),
            ("close", "", "", "j", "OK"),
        ]
        * 2
    )
    assert {line["peer"].rpartition(":")[0] for line in found} == {"ipv4:127.0.0.1"}


def test_the_command_line_of_tokens_notes_who_issued_and_revoked(tmp_path: Path) -> None:
    tokens = tmp_path / "access" / "tokens.json"
    made = invoke("token", "issue", "job", "mine", "--tokens", str(tokens))
    assert made.exit_code == 0
    token_id, secret = made.stdout.strip().split("_")[1:]
    assert invoke("token", "revoke", token_id, "--tokens", str(tokens)).exit_code == 0
    assert invoke("token", "revoke", "unknown", "--tokens", str(tokens)).exit_code == 2
    shown = invoke("audit", "--data-dir", str(tmp_path), "--tokens", str(tokens))
    assert shown.exit_code == 0, shown.output
    issued, revoked = shown.stdout.splitlines()
    assert f"act=issue scope=user subject={os.geteuid()}" in issued
    assert f"of_token={token_id} of_scope=job of_subject=mine result=OK" in issued
    assert f"act=revoke scope=user subject={os.geteuid()}" in revoked
    assert secret not in shown.output + tokens.with_suffix(".audit.jsonl").read_text()


def test_an_audit_that_cannot_be_written_is_told_and_stops_no_revoke(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = tmp_path / "tokens.json"
    tokens.with_suffix(".audit.jsonl").mkdir()
    made = invoke("token", "issue", "admin", "--tokens", str(tokens))
    assert made.stdout.startswith("callsheet_")
    assert len(made.stdout.splitlines()) == 1
    token_id = made.stdout.split("_")[1]
    assert invoke("token", "revoke", token_id, "--tokens", str(tokens)).exit_code == 0
    assert [token_id in message and "lacks the" in message for message in caplog.messages] == [True, True]
    listed = json.loads(invoke("token", "list", "--json", "--tokens", str(tokens)).stdout)["tokens"]
    assert listed[0]["revoked_at"] is not None


def test_nothing_noted_is_an_error_of_its_own(tmp_path: Path) -> None:
    none = invoke("audit", "--data-dir", str(tmp_path), "--tokens", str(tmp_path / "tokens.json"))
    assert none.exit_code == 1
    assert "has no audit" in none.stderr
    unknown = invoke("audit", "--data-dir", str(tmp_path), "--act", "drian")
    assert unknown.exit_code == 2
    assert "drian" in unknown.stderr
