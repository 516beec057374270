"""The gateway before a real scheduler: dialects, keys, retries, branches, bounds, and what a trainer takes."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import anyio.lowlevel
import pytest
from aiohttp import web
from callsheet.client import InvalidArgumentError, NotFoundError, PromptDrift
from callsheet.gateway.dialects.dialect import DIALECTS
from callsheet.gateway.server.keys import TrajectoryKey, write_key

from tests.support.gateways import CHAT, RunningGateway, chat, running_gateway, scripted_stack
from tests.support.ports import free_port
from tests.support.waiting import until_so

pytestmark = pytest.mark.anyio
_BODIES = {
    "/chat/completions": chat("How is it?"),
    "/completions": {"model": "m", "prompt": "How is it?"},
    "/messages": {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "How is it?"}]},
    "/responses": {"model": "m", "input": "How is it?"},
}


@pytest.fixture(scope="module")
async def scheduler(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    async with scripted_stack(tmp_path_factory.mktemp("stack")) as address:
        yield address


@pytest.fixture(scope="module")
async def gateway(scheduler: str, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningGateway]:
    bounds: dict[str, Any] = {"max_request_bytes": 200_000, "max_trajectory_calls": 3, "disconnect_grace_s": 0.1}
    async with running_gateway(scheduler, "job", tmp_path_factory.mktemp("gateway"), **bounds) as running:
        yield running


async def key_of(gateway: RunningGateway, trajectory_id: str, **sampling: float) -> str:
    trajectory = gateway.job.trajectory(trajectory_id)
    await trajectory.open()
    return (await trajectory.gateway(**sampling)).api_key  # type: ignore[arg-type]


@pytest.mark.parametrize("path", DIALECTS)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_dialect_answers(gateway: RunningGateway, path: str, stream: bool) -> None:
    key = await key_of(gateway, f"dialect{path}{stream}")
    answer = await gateway.post(f"/v1{path}", {**_BODIES[path], "stream": stream}, key)
    assert answer.status == 200, answer.body
    said = answer.body if stream else json.dumps(answer.body)
    assert "fine" in said
    assert answer.headers.get("x-callsheet-streaming") == ("synthetic" if stream else None)


@pytest.mark.parametrize("path", DIALECTS)
async def test_an_error_has_the_form_of_its_dialect(gateway: RunningGateway, path: str) -> None:
    key = await key_of(gateway, f"error{path}")
    hidden = '{"a": "\u2200", "b": 1}'.encode("utf-16-le")
    bodies = {
        b"{": 400,
        b"[]": 400,
        b"{}": 400,
        b" " * 200_001: 413,
        b"[" * 101: 413,
        b'{"a":' * 66_000: 413,
        hidden: 400,
    }
    for body, status in bodies.items():
        answer = await gateway.post(f"/v1{path}", body, key)
        assert (answer.status, sorted(answer.body)) == (status, sorted(DIALECTS[path].error(status, ""))), answer.body
    assert (await gateway.post(f"/v1{path}", _BODIES[path], key[:-2] + "AA")).status == 401


async def test_a_conversation_is_one_sample_with_the_tokens_that_were_sampled(gateway: RunningGateway) -> None:
    key = await key_of(gateway, "turns")
    first = await gateway.post(CHAT, chat("Roll the dice", logprobs=True), key)
    second = await gateway.post(CHAT, chat("Roll the dice", first.text, "again"), key)
    assert second.body["choices"][0]["logprobs"] is None
    samples = await gateway.job.trajectory("turns").samples()
    assert [(turn.parent, turn.drift) for turn in samples.turns] == [(None, PromptDrift.CLEAN), (0, PromptDrift.CLEAN)]
    (sample,) = samples.samples
    told = first.body["choices"][0]["logprobs"]["content"]
    at = samples.turns[0].prompt_tokens
    assert sum(sample.loss_mask) == sum(answer.body["usage"]["completion_tokens"] for answer in (first, second))
    assert list(sample.log_probs[at : at + len(told)]) == [token["logprob"] for token in told]
    assert {version for version in sample.versions if version is not None} == {0}


async def test_a_key_generates_and_does_nothing_else(gateway: RunningGateway) -> None:
    key = await key_of(gateway, "mine")
    other = {"x-callsheet-job": "job", "x-callsheet-trajectory": "theirs"}
    assert (await gateway.post("/callsheet/v1/keys", {}, key, other)).status == 403
    async with gateway.session.get(
        f"{gateway.url}/callsheet/v1/samples", headers=other | {"authorization": f"Bearer {key}"}
    ) as answer:
        assert answer.status == 403
    # What else it names changes nothing.
    assert (await gateway.post(CHAT, chat("Hello"), key, other)).status == 200
    assert len((await gateway.job.trajectory("mine").samples()).turns) == 1
    with pytest.raises(InvalidArgumentError, match="temperature"):
        await gateway.job.trajectory("mine").gateway(temperature=-1.0)


@pytest.mark.parametrize("path", DIALECTS)
async def test_a_foreign_key_is_told_so(gateway: RunningGateway, path: str) -> None:
    trajectory = TrajectoryKey("job", "", "t", time.time() + 60.0)
    for foreign in ("sk-proj-1234", "cs-cut", write_key(trajectory, b"another gateway's"), "nobody/t", ""):
        answer = await gateway.post(f"/v1{path}", _BODIES[path], foreign)
        assert answer.status == (401 if foreign else 400), (foreign, answer.body)
    # A job that a header names is no key.
    named = {"x-callsheet-job": "nobody"}
    assert (await gateway.post(f"/v1{path}", _BODIES[path], "sk-proj-1234", named)).status == 409


async def test_a_trajectory_can_be_named_by_header_path_or_in_place_of_a_key(gateway: RunningGateway) -> None:
    key = await key_of(gateway, "named")
    headers = {"x-callsheet-job": "job", "x-callsheet-trajectory": "named"}
    for path, shown, given in (
        (CHAT, "unused", headers),
        (f"/sessions/{key}{CHAT}", "unused", {}),
        ("/sessions/job/named" + CHAT, "", {}),
        ("/sessions/named" + CHAT, "job", {}),
        (CHAT, "job/named", {}),
        (CHAT, "", {"x-api-key": key}),
    ):
        answer = await gateway.post(path, chat("Hello"), shown, given)
        assert answer.status == 200, (path, answer.body)
    assert len((await gateway.job.trajectory("named").samples()).turns) == 6
    # A call that names a job alone belongs to no trajectory.
    assert (await gateway.post(CHAT, chat("Hello"), "job")).status == 200
    assert (await gateway.post(CHAT, chat("Hello"))).status == 400


async def test_parallel_calls_are_branches_and_too_many_are_told_to_come_again(gateway: RunningGateway) -> None:
    key = await key_of(gateway, "parallel")
    statuses: list[int] = []

    async def ask(number: int) -> None:
        answer = await gateway.post(CHAT, chat(f"slow {number}"), key)
        statuses.append(answer.status)
        if answer.status == 429:
            assert int(answer.headers["retry-after"]) >= 1

    async with anyio.create_task_group() as tasks:
        for number in range(5):
            tasks.start_soon(ask, number)
    assert sorted(statuses) == [200, 200, 200, 429, 429]
    samples = await gateway.job.trajectory("parallel").samples()
    assert [turn.parent for turn in samples.turns] == [None] * 3
    assert len(samples.samples) == 3


async def test_an_action_is_cancelled_once_nobody_waits_for_it(gateway: RunningGateway) -> None:
    key = await key_of(gateway, "gone")
    before = (await gateway.job.status()).actions.get("cancelled", 0)
    with pytest.raises(TimeoutError):
        async with gateway.session.post(
            f"{gateway.url}{CHAT}",
            json=chat("endless"),
            headers={"authorization": f"Bearer {key}"},
            timeout=aiohttp.ClientTimeout(total=0.5),
        ):
            pass
    await gateway.wait_for_actions("cancelled", before + 1)
    assert (await gateway.job.trajectory("gone").samples()).turns == ()


async def test_what_the_trainer_forces_is_forced(gateway: RunningGateway) -> None:
    key = await key_of(gateway, "forced", max_tokens=5)
    answer = await gateway.post(CHAT, chat("Roll the dice", max_tokens=20), key)
    assert answer.body["usage"]["completion_tokens"] == 5
    assert answer.body["choices"][0]["finish_reason"] == "length"


async def test_a_closed_trajectory_takes_no_calls_and_keeps_its_samples(gateway: RunningGateway) -> None:
    key = await key_of(gateway, "closed")
    assert (await gateway.post(CHAT, chat("Hello"), key)).status == 200
    await gateway.job.trajectory("closed").close()
    late = await gateway.post(CHAT, chat("Hello again"), key)
    assert (late.status, late.headers["x-should-retry"]) == (409, "false")
    assert len((await gateway.job.trajectory("closed").samples()).samples) == 1


async def test_completions_go_on_from_tokens_and_messages_are_counted(gateway: RunningGateway) -> None:
    key = await key_of(gateway, "tokens")
    first = await gateway.post("/v1/completions", {"model": "m", "prompt": "Roll the dice"}, key)
    assert first.body["usage"]["prompt_tokens"] == 1 + len("Roll the dice")
    (sample,) = (await gateway.job.trajectory("tokens").samples()).samples
    again = await gateway.post("/v1/completions", {"model": "m", "prompt": [*sample.token_ids, 65, 66]}, key)
    assert again.status == 200
    samples = await gateway.job.trajectory("tokens").samples()
    assert [turn.parent for turn in samples.turns] == [None, 0]
    assert samples.samples[0].token_ids[: len(sample.token_ids)] == sample.token_ids
    body = _BODIES["/messages"]
    counted = await gateway.post("/v1/messages/count_tokens", body, key)
    answered = await gateway.post("/v1/messages", body, key)
    assert counted.body["input_tokens"] == answered.body["usage"]["input_tokens"]


async def test_models_are_listed_with_their_context(gateway: RunningGateway) -> None:
    for path, found in (("", lambda body: body["data"][0]), ("/policy", lambda body: body)):
        async with gateway.session.get(f"{gateway.url}/v1/models{path}", headers={"x-api-key": "job"}) as answer:
            model = found(await answer.json())  # type: ignore[no-untyped-call]
        assert (model["id"], model["context_length"]) == ("policy", 131_072)
    async with gateway.session.get(f"{gateway.url}/v1/models/none", headers={"x-api-key": "job"}) as answer:
        assert answer.status == 404
    long = "x" * 140_000
    for path, fields, param in (
        ("/chat/completions", {"messages": [{"role": "user", "content": long}]}, "messages"),
        ("/completions", {"prompt": long}, "prompt"),
        ("/responses", {"input": long}, "input"),
        ("/messages", {"messages": [{"role": "user", "content": long}]}, None),
    ):
        too_long = await gateway.post(f"/v1{path}", {**_BODIES[path], **fields}, "job")
        assert too_long.status == 400
        error = too_long.body["error"]
        assert "prompt is too long: " in error["message"]
        assert "maximum context length is 131072" in error["message"]
        assert param is None or (error["code"], error["param"]) == ("context_length_exceeded", param)


async def test_a_closed_trajectory_is_forgotten_after_its_time(scheduler: str, tmp_path: Path) -> None:
    async with running_gateway(scheduler, "short-lived", tmp_path, retention_s=0.0, sweep_s=0.05) as gateway:
        for trajectory_id in ("closed", "open"):
            key = await key_of(gateway, trajectory_id)
            assert (await gateway.post(CHAT, chat("Hello"), key)).status == 200
        await gateway.job.trajectory("closed").close()
        await until_so(lambda: gateway.job.trajectory("closed").samples(), lambda it: not it.turns, every_s=0.02)
        assert len((await gateway.job.trajectory("open").samples()).turns) == 1
        with pytest.raises(NotFoundError, match="never opened, or is forgotten"):
            await gateway.job.trajectory("unknown").samples()


async def test_a_server_that_parses_replies_is_asked(scheduler: str, tmp_path: Path) -> None:
    async def separate(request: web.Request) -> web.Response:
        assert (await request.json())["reasoning_parser"] == "qwen3"
        return web.json_response({"reasoning_text": "so so", "text": "Fine."})

    app = web.Application()
    app.router.add_post("/separate_reasoning", separate)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    parser = {"parser_url": f"http://127.0.0.1:{port}", "reasoning_parser": "qwen3"}
    async with running_gateway(scheduler, "parsed", tmp_path, **parser) as gateway:
        message = (await gateway.post(CHAT, chat("How is it?"), "parsed")).body["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("Fine.", "so so")
    await runner.cleanup()
