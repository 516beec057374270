"""The audit of a scheduler: what a line has, how many there may be, and lines that cannot be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from callsheet.scheduler.access.identity import Identity, Scope
from callsheet.scheduler.core.words.refusals import not_found
from callsheet.scheduler.service import audit
from callsheet.scheduler.service.audit import MOST_LINES, AuditTrail
from callsheet.v1 import client_service_pb2, common_pb2, job_pb2, weights_pb2
from structlog.testing import capture_logs

SECRET = "s3://key:password@bucket/weights?signature=abc"
KEY = common_pb2.ActionKey(job_id="j", action_id="a")
ITEM = client_service_pb2.ClientItem
ACTS = [
    (ITEM(close_job="j"), "close", {"job_id": "j"}),
    (
        ITEM(
            cancel=client_service_pb2.CancelActionRequest(
                key=common_pb2.ActionKey(job_id="j", action_id="a"), reason=SECRET
            )
        ),
        "cancel",
        {"job_id": "j", "action_id": "a"},
    ),
    (
        ITEM(cancel_work=client_service_pb2.CancelWorkRequest(job_id="j", group_id="g", reason=SECRET)),
        "cancel",
        {"job_id": "j", "group_id": "g"},
    ),
    (
        ITEM(
            publish_policy_version=client_service_pb2.PublishPolicyVersionRequest(
                job_id="j",
                version=3,
                source=SECRET,
                rollout=weights_pb2.RolloutPlan(service="policy", source=weights_pb2.WeightSource(location=SECRET)),
            )
        ),
        "publish",
        {"job_id": "j", "version": 3, "service": "policy"},
    ),
]


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("item", "act", "target"), ACTS, ids=[str(item.WhichOneof("item")) for item, _, _ in ACTS])
async def test_a_line_has_who_what_and_the_result_and_no_content(
    tmp_path: Path, item: client_service_pb2.ClientItem, act: str, target: dict[str, Any]
) -> None:
    path = tmp_path / "audit.jsonl"
    trail = AuditTrail(path)
    told = trail.of_item(item, "ipv4:10.0.0.1:7")
    assert told is not None
    with capture_logs() as logged:
        told(None)
        told(not_found("job_id", "j", "names no open job"))
    await trail.flush()
    who = {"scope": "", "subject": "", "token": "", "peer": "ipv4:10.0.0.1:7"}
    done, refused = written(path)
    assert done.pop("timestamp") <= refused.pop("timestamp")
    assert done == {"event": "audit", "act": act, **who, **target, "result": "OK"}
    assert refused == {**done, "result": "NOT_FOUND", "rule": "names no open job"}
    # The log has the same lines.
    assert [{**each, "timestamp": None, "log_level": None} for each in logged] == [
        {**each, "timestamp": None, "log_level": None} for each in (done, refused)
    ]
    assert "password" not in path.read_text()


def test_what_nobody_else_feels_is_not_noted(tmp_path: Path) -> None:
    trail = AuditTrail(tmp_path / "audit.jsonl")
    for item in (ITEM(), ITEM(open_job=job_pb2.JobSpec(job_id="j")), ITEM(hold_job="j"), ITEM(release_job="j")):
        assert trail.of_item(item, "ipv4:10.0.0.1:7") is None
    looks, refusal = "/callsheet.v1.AdminService/GetStatus", not_found("field", "value", "rule")
    with capture_logs() as logged:
        trail.denied(Identity(Scope.JOB, "j", "t"), "p", looks, refusal)
    assert logged == []


async def test_a_caller_who_goes_on_is_counted_and_leaves_others_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    trail = AuditTrail(path)
    loud, quiet = Identity(Scope.JOB, "loud", "t-1"), Identity(Scope.ADMIN, "", "t-2")
    refusal = not_found("manager_id", "m", "names no manager")
    drain, close = "/callsheet.v1.AdminService/DrainManager", "/callsheet.v1.ClientService/CloseJob"
    for port in range(MOST_LINES + 50):
        # Another port is another connection of the same peer.
        trail.denied(loud, f"ipv4:10.0.0.1:{port}", drain, refusal)
    trail.denied(quiet, "ipv4:10.0.0.1:1", drain, refusal)
    trail.denied(loud, "ipv4:10.0.0.1:1", close, refusal)
    await trail.flush()
    lines = written(path)
    assert [(each["subject"], each["act"]) for each in lines[MOST_LINES : MOST_LINES + 2]] == [
        ("", "drain"),
        ("loud", "close"),
    ]
    last = lines[-1]
    assert (last["subject"], last["token"], last["act"], last["further"]) == ("loud", "t-1", "drain", 50)
    assert len(lines) == MOST_LINES + 3
    # The next window begins anew.
    trail.denied(loud, "ipv4:10.0.0.1:1", drain, refusal)
    await trail.flush()
    assert len(written(path)) == MOST_LINES + 4


async def test_what_cannot_be_written_is_told_in_the_log_and_later_lines_are_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.mkdir()
    trail = AuditTrail(path)
    with capture_logs() as logged:
        trail.of("drain", "p", {"manager": "m"})(None)
        await trail.flush()
    assert [(each["event"], each["log_level"]) for each in logged] == [
        ("audit", "info"),
        ("audit_not_written", "error"),
    ]
    assert (logged[1]["lines"], logged[1]["path"]) == (1, str(path))
    path.rmdir()
    trail.of("heal", "p", {"manager": "m"})(None)
    await trail.flush()
    assert [each["act"] for each in written(path)] == ["heal"]


async def test_only_so_many_lines_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "MAX_WAITING", 5)
    trail = AuditTrail(tmp_path / "audit.jsonl")
    with capture_logs() as logged:
        for _ in range(8):
            trail.of("drain", "p", {"manager": "m"})(None)
    assert [each["event"] for each in logged].count("audit") == 8
    assert [each["event"] for each in logged].count("audit_not_written") == 3
    await trail.flush()
    assert len(written(tmp_path / "audit.jsonl")) == 5
