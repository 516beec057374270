"""Two jobs with tokens beside one another, as `callsheet up --tokens` runs them: each act of one against the other.

`python -m pytest -rP` prints the table: the act, its status, and the message that came back.
"""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import grpc
import pytest
from callsheet.client import (
    Client,
    ClientOptions,
    Failed,
    ImageBuild,
    Job,
    Sampling,
    SandboxFile,
    WeightsNotProvedError,
)
from callsheet.client.admin import AdminClient
from callsheet.deploy import tokens
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import Stack, local_stack
from callsheet.deploy.stack_settings import AUTO_GATEWAY, StackSettings
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.sandbox.build_settings import BuildsFor
from callsheet.scheduler.access.settings import AccessSettings
from callsheet.v1 import (
    action_pb2,
    buffer_pb2,
    client_service_pb2,
    common_pb2,
    job_pb2,
    payload_service_pb2,
    weights_pb2,
)

from tests.support.binaries import require_program
from tests.support.every_rpc import JOB, code_of, requests_of, rpcs
from tests.support.expected import present
from tests.support.guarded_service import Caller, caller, open_job
from tests.support.measurements import Measured
from tests.support.oci_images import archive_of, file
from tests.support.root_filesystems import require_overlays
from tests.support.torch_models import save_weights, small_model

pytestmark = pytest.mark.anyio
_DEADLINE_S = 300.0
ROGUE = "rogue"
_CODES = grpc.StatusCode
_DENIED = "PERMISSION_DENIED"
# The same as of a payload that nobody has put.
_UNKNOWN = "FAILED_PRECONDITION"
Item = client_service_pb2.ClientItem

# What the rogue does with each rpc. One that is not here fails the test: say what it would do to another job.
ACTS: Mapping[str, str] = {
    "ClientSession": "on its session,",
    "GetServerInfo": "ask who it is; nothing of the other is in it",
    "OpenJob": "open the other job again, to hold it",
    "CloseJob": "close the other job",
    "OpenTrajectory": "open a trajectory in it",
    "CloseTrajectory": "finish a trajectory of it",
    "SubmitAction": "submit an action to its trajectory, as a read of its sandbox's files or a fork of it",
    "CancelAction": "cancel an action of it",
    "GetOutcome": "read an outcome of it",
    "PublishPolicyVersion": "publish a version for it",
    "CancelWork": "cancel all its work",
    "ListJobs": "read its status",
    "ListTrajectories": "list its trajectories",
    "ListGroups": "list its groups",
    "TakeBatch": "take a batch of it",
    "SettleBatch": "acknowledge or give back its batch",
    "ListBuffer": "list its finished trajectories",
    "GetStatus": "read the status of all jobs and machines",
    "Explain": "explain its action",
    "ListActions": "list its actions",
    "ListTrajectoryHistory": "read what became of its trajectories",
    "ListActionHistory": "read what became of its actions",
    "ListClosedJobs": "read what it cost once it was closed",
    "DrainManager": "drain the machine that it works on",
    "HealManager": "take an engine's new weights away",
    "WhatIf": "ask a what-if about its actions",
    "ManagerSession": "be a manager, to be given its actions",
    "PutPayload": "store a payload of its own",
    "GetPayload": "read its payload",
}
# What the rogue may do, and nothing of the other comes back or changes.
HARMLESS = {"GetServerInfo": "OK", "PutPayload": "OK", "GetPayload": "NOT_FOUND"}


@dataclass
class Row:
    """What one act got."""

    act: str
    status: str
    message: str
    expected: str


@dataclass
class Two:
    """A stack with tokens, in which the victim has some of everything.

    Attributes:
        payload: The victim's, of which the rogue has learnt the name.
    """

    stack: Stack
    tokens: Path
    victim: Job
    payload: common_pb2.PayloadReference
    key: str
    victim_token: str
    rogue_token: str

    async def state(self) -> str:
        """All that an administrator sees of the victim and of the machines."""
        options = ClientOptions(token=tokens.issue(self.tokens, "admin", ""))
        async with AdminClient(self.stack.address, options) as admin:
            found = await admin.status()
        (job,) = [each for each in found.jobs if each.job_id == JOB]
        managers = [(each.manager_id, each.draining) for each in found.managers]
        buffer = replace(job.buffer, batches=tuple(replace(each, lease_s=0.0) for each in job.buffer.batches))
        return f"{job.policy_version} {job.open_trajectories} {job.actions} {job.rollouts} {buffer} {managers}"


@asynccontextmanager
async def two_jobs(directory: Path) -> AsyncIterator[Two]:
    require_program("bwrap")
    kept = directory / "tokens.json"
    settings = StackSettings(
        directory / "data",
        managers=(Role.SANDBOX, Role.INFERENCE),
        access=AccessSettings(tokens=kept),
        given={"kv_cache_tokens": 16_384},
        gateway=AUTO_GATEWAY,
    )
    async with local_stack(settings) as stack:
        assert stack.gateway_url is not None
        mine, theirs = tokens.issue(kept, "job", JOB), tokens.issue(kept, "job", ROGUE)
        options = ClientOptions(token=mine, gateway=stack.gateway_url)
        async with Client(stack.address, options) as client:
            job = await client.open_job(JOB)
            trajectory = job.trajectory("t")
            await trajectory.open()
            (await trajectory.env_reset(files=[SandboxFile("answer", b"hidden tests")])).unwrap()
            (await job.generate([1, 2], Sampling(max_new_tokens=2), action_id="a")).unwrap()
            key = (await trajectory.gateway()).api_key
            group = job.group("g", size=1)
            async with group.trajectory("finished") as finished:
                await finished.finish(1.0)
            await job.take_batch(batch_id="b", lease_s=3600.0)
            async with caller(stack.address, mine) as raw:
                put = payload_service_pb2.PutPayloadRequest(chunk=b"hidden tests")
                payload = (await raw(raw.payloads.PutPayload, iter([put]))).reference
            yield Two(stack, kept, job, payload, key, mine, theirs)


async def by_every_rpc(two: Two, rogue: Caller) -> list[Row]:
    """Each rpc of the contract with the ids of the victim."""
    rows = []
    for method in rpcs():
        for request in requests_of(method, two.payload):
            code, said = await code_of(rogue.channel, method, request, rogue.metadata)
            assert "hidden tests" not in said
            items = getattr(request, "items", None) if method.name == "ClientSession" else None
            item = f" {items[0].WhichOneof('item')}" if items else ""
            assert code is not _CODES.OK or JOB not in said
            got = code.name, "" if code is _CODES.OK else said, HARMLESS.get(method.name, _DENIED)
            rows.append(Row(f"{method.name}: {ACTS[method.name]}{item}", *got))
    return rows


def crossed(two: Two) -> Iterator[tuple[str, str, Any, str]]:
    """Requests in the rogue's own job, with things of the victim in them: act, rpc, request and expected status."""
    stolen = common_pb2.Blob(reference=two.payload)
    rollout = client_service_pb2.PublishPolicyVersionRequest(job_id=ROGUE, version=1)
    rollout.rollout.service = "policy"
    for source in ("/etc", f"{two.stack.settings.data_dir}/weights"):
        rollout.rollout.source.location = source
        yield f"weights at {source} for its service", "PublishPolicyVersion", _copy(rollout), _DENIED
    session = client_service_pb2.ClientSessionRequest(items=[Item(sequence=1, publish_policy_version=rollout)])
    yield "weights for its service, on a session", "ClientSession", session, _DENIED
    plain = client_service_pb2.PublishPolicyVersionRequest(job_id=ROGUE, version=1, source="/etc")
    yield "weights for the only service, without its name", "PublishPolicyVersion", plain, _DENIED
    group = _copy(rollout)
    group.rollout.source.group.MergeFrom(_group())
    group.rollout.canary.prompt_token_ids.append(1)
    group.rollout.canary.expected.token_ids.append(1)
    group.rollout.canary.expected.log_probs.append(0.0)
    yield "weights by a group for its service", "PublishPolicyVersion", group, _DENIED
    tensors = _copy(rollout)
    tensors.rollout.source.tensors.CopyFrom(stolen)
    yield "its payload as weights", "PublishPolicyVersion", tensors, _UNKNOWN
    step = action_pb2.ActionSpec(job_id=ROGUE, trajectory_id="own", action_id="s")
    step.env_reset.files.add(path="answer", content=stolen)
    yield "its payload as a file of an own sandbox", "SubmitAction", _submit(step), _UNKNOWN
    fork = action_pb2.ActionSpec(job_id=ROGUE, trajectory_id="t", action_id="f")
    fork.env_step.command.shell = "cat answer"
    yield "a command in its trajectory, by that one's id alone", "SubmitAction", _submit(fork), "NOT_FOUND"
    result = client_service_pb2.CloseTrajectoryRequest(job_id=ROGUE, trajectory_id="own")
    result.result.CopyFrom(buffer_pb2.TrajectoryResult(payload=stolen))
    yield "its payload as an own result", "CloseTrajectory", result, _UNKNOWN
    settle = client_service_pb2.SettleBatchRequest(job_id=ROGUE, batch_id="b")
    yield "its batch, by that one's id alone", "SettleBatch", settle, "NOT_FOUND"
    outcome = client_service_pb2.GetOutcomeRequest(key=common_pb2.ActionKey(job_id=ROGUE, action_id="a"))
    yield "its outcome, by that one's id alone", "GetOutcome", outcome, "NOT_FOUND"
    whose = client_service_pb2.GetServerInfoRequest(token_id=two.victim_token.split("_")[1])
    yield "whether its token is valid", "GetServerInfo", whose, _DENIED


def _copy(message: Any) -> Any:
    copied = type(message)()
    copied.CopyFrom(message)
    return copied


def _group() -> Any:
    tensors = [weights_pb2.TensorSpec(name="x", dtype="float32", shape=[1])]
    return weights_pb2.TransferGroup(
        address="127.0.0.1", port=22, group_name="g", world_size=2, backend="gloo", tensors=tensors
    )


def _submit(action: action_pb2.ActionSpec) -> client_service_pb2.SubmitActionRequest:
    return client_service_pb2.SubmitActionRequest(action=action)


async def by_things_of_the_other(two: Two, rogue: Caller) -> list[Row]:
    await rogue(rogue.client.OpenJob, open_job(ROGUE))
    own = job_pb2.TrajectorySpec(job_id=ROGUE, trajectory_id="own")
    await rogue(rogue.client.OpenTrajectory, client_service_pb2.OpenTrajectoryRequest(trajectory=own))
    methods = {method.name: method for method in rpcs()}
    rows = []
    for act, name, request, expected in crossed(two):
        code, said = await code_of(rogue.channel, methods[name], request, rogue.metadata)
        rows.append(Row(f"{name} in its own job: {act}", code.name, said, expected))
    answer = await rogue(rogue.client.ListJobs, client_service_pb2.ListJobsRequest())
    assert [each.spec.job_id for each in answer.jobs] == [ROGUE]
    assert answer.jobs[0].policy_version == 0
    rows.append(Row("ListJobs: list all jobs", "OK", "its own alone", "OK"))
    batch = client_service_pb2.TakeBatchRequest(job_id=ROGUE, batch_id="b")
    assert not (await rogue(rogue.client.TakeBatch, batch)).HasField("batch")
    rows.append(Row("TakeBatch in its own job: its batch, by that one's id alone", "OK", "none", "OK"))
    return rows


async def over_http(two: Two) -> list[Row]:
    """The gateway and the page of metrics."""
    assert two.stack.metrics_url is not None
    other = {"x-callsheet-job": JOB, "x-callsheet-trajectory": "t"}
    chat = {"model": "any", "messages": [{"role": "user", "content": "How?"}]}
    # Not the last character: bits of it may stand for nothing.
    altered = two.key[:-8] + ("0" if two.key[-8] != "0" else "1") + two.key[-7:]
    asked = [
        ("a key for its trajectory", "POST", "/callsheet/v1/keys", two.rogue_token, {}, 403),
        ("its samples", "GET", "/callsheet/v1/samples", two.rogue_token, None, 403),
        ("generate in its trajectory", "POST", "/v1/chat/completions", two.rogue_token, chat, 403),
        ("generate by its key, altered", "POST", "/v1/chat/completions", altered, chat, 401),
        ("generate by its name", "POST", "/v1/chat/completions", f"{JOB}/t", chat, 401),
    ]
    rows = []
    async with aiohttp.ClientSession() as session:
        for act, verb, path, key, body, expected in asked:
            headers = {"authorization": f"Bearer {key}", **other}
            async with session.request(verb, f"{two.stack.gateway_url}{path}", headers=headers, json=body) as answer:
                error = (await answer.json()).get("error", {})
                message = str(error.get("message", error))
                rows.append(Row(f"gateway {path}: {act}", str(answer.status), message, str(expected)))
        headers = {"authorization": f"Bearer {two.rogue_token}"}
        async with session.get(two.stack.metrics_url, headers=headers) as answer:
            message = (await answer.text()).strip()
            rows.append(Row("/metrics: names of machines", str(answer.status), message, "403"))
    return rows


def by_files(two: Two) -> list[Row]:
    """What another user of the machine finds."""
    data_dir = two.stack.settings.data_dir
    rows = []
    for path in (data_dir, data_dir / "audit.jsonl", two.tokens, data_dir / "tokens" / "admin.token"):
        mode, of_others = stat.S_IMODE(path.stat().st_mode), path.stat().st_mode & 0o077
        rows.append(Row(f"the file {path.name} on the same machine", f"{mode:o}", "", f"{mode - of_others:o}"))
    return rows


async def test_all_that_one_job_may_not_do_to_another(tmp_path: Path, measured: Measured) -> None:
    assert set(ACTS) == {method.name for method in rpcs()}, "a new rpc: what would it do to another job?"
    with anyio.fail_after(_DEADLINE_S):
        async with two_jobs(tmp_path) as two, caller(two.stack.address, two.rogue_token) as rogue:
            before = await two.state()
            rows = await by_every_rpc(two, rogue)
            rows += await by_things_of_the_other(two, rogue)
            rows += await over_http(two)
            rows += by_files(two)
            after = await two.state()
    for row in rows:
        measured(f"| {row.act} | {row.status} | {row.message} |")
    assert [row for row in rows if row.status != row.expected] == []
    assert after == before


async def test_who_may_publish_reads_weights_below_the_operators_directories_alone(
    tmp_path: Path, measured: Measured
) -> None:
    with anyio.fail_after(_DEADLINE_S):
        async with two_jobs(tmp_path) as two:
            kept = two.stack.settings.data_dir / "weights"
            save_weights(small_model(3, TransformerConfig()), TransformerConfig(), kept / "step-1")
            (kept / "out").symlink_to(tmp_path)
            named = ClientOptions(token=tokens.issue(two.tokens, "job", "trainer", publishes=["policy"]))
            async with Client(two.stack.address, named) as client, await client.open_job("trainer") as trainer:
                texts = set()
                places: list[str | Path] = ["/etc", "/does/not/exist", kept / "out", kept / ".." / "logs"]
                for version, place in enumerate(places, 1):
                    with pytest.raises(WeightsNotProvedError) as caught:
                        await trainer.publish(version, place, service="policy", wait_s=10.0)
                    measured(f"| publish by a token that names policy, at {place} | not proved | {caught.value} |")
                    texts.add(str(caught.value).replace(str(place), "PLACE").replace(f"version {version}", "version"))
                assert len(texts) == 1, texts
                (await two.victim.generate([1, 2], Sampling(max_new_tokens=2))).unwrap()
                status = present(await trainer.publish(9, kept / "step-1", service="policy"))
                assert status.done
            # Its service is for its token, even as nobody publishes any more.
            denied = client_service_pb2.PublishPolicyVersionRequest(job_id=JOB, version=1, source=str(kept / "step-1"))
            async with caller(two.stack.address, two.victim_token) as raw:
                assert await raw.refused(raw.client.PublishPolicyVersion, denied) == (
                    _CODES.PERMISSION_DENIED,
                    "rollout.service",
                )
            # Nobody else uses it once the others have ended, and no valid token names it.
            await two.victim.close()
            for each in tokens.listed(two.tokens):
                if each.publishes:
                    tokens.revoke(two.tokens, each.token_id)
            plain = ClientOptions(token=two.rogue_token)
            async with Client(two.stack.address, plain) as client, await client.open_job(ROGUE) as alone:
                status = present(await alone.publish(1, kept / "step-1"))
                assert status.done


@pytest.mark.parametrize("builds_for", BuildsFor)
async def test_a_job_builds_a_dockerfile_only_where_the_operator_lets_jobs(
    tmp_path: Path, measured: Measured, builds_for: BuildsFor
) -> None:
    require_program("buildah")
    require_overlays()
    settings = StackSettings(
        tmp_path / "data",
        managers=(Role.SANDBOX,),
        access=AccessSettings(tokens=tmp_path / "tokens.json"),
        given={"build_images": True, "builds_for": builds_for},
    )
    build = ImageBuild(archive_of([file("Dockerfile", b"FROM scratch\nCOPY given /\n"), file("given", b"content")]))
    with anyio.fail_after(_DEADLINE_S):
        async with local_stack(settings) as stack:
            options = ClientOptions(token=tokens.issue(tmp_path / "tokens.json", "job", ROGUE))
            async with Client(stack.address, options) as client, await client.open_job(ROGUE) as job:
                await (trajectory := job.trajectory("t")).open()
                outcome = await trajectory.env_reset(build=build)
    measured(f"| build a Dockerfile, --builds-for {builds_for.value} | {outcome} |")
    if builds_for is BuildsFor.JOBS:
        outcome.unwrap()
    else:
        assert isinstance(outcome, Failed)
        assert outcome.reason == "image_build_failed"
        assert "--builds-for jobs" in outcome.message
