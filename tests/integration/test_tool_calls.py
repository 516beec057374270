"""Tool calls and judgements against a real server: what reaches it, what comes back, and what is refused."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from callsheet.managers.executor import Completed, Stopped
from callsheet.managers.tools.executor import ToolsExecutor
from callsheet.v1 import outcome_pb2

from tests.support.expected import expect
from tests.support.limited_provider import FixedWindow, LimitedProvider, SlidingWindow, StrictBucket, serve_provider
from tests.support.servers import redis_server
from tests.support.tool_attempts import answered, call_attempt, failure, judge_attempt, tools_executor
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
SECRET = "sk-0123456789abcdef"
POLICY, ENV = outcome_pb2.FAILURE_KIND_POLICY, outcome_pb2.FAILURE_KIND_ENV
INFRA, QUOTA = outcome_pb2.FAILURE_KIND_INFRA, outcome_pb2.FAILURE_KIND_QUOTA
_DEADLINE_S = 60.0


@pytest.fixture
async def provider() -> AsyncIterator[LimitedProvider]:
    """A server that asks for the key on some paths."""
    async with serve_provider(LimitedProvider()) as served:
        yield served


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A Redis server."""
    with redis_server() as url:
        yield url


@pytest.fixture
async def tools(
    provider: LimitedProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ToolsExecutor]:
    """Tools of that server."""
    monkeypatch.setenv("LAB_KEY", SECRET)
    port = provider.url.rpartition(":")[2]
    text = f"""
[keys.lab]
variable = "LAB_KEY"
[tools.search]
url = "{provider.url}/v2"
key = "lab"
hosts = ["*.example.org:443"]
max_response_bytes = 100000
timeout_s = 2
[tools.all]
url = "{provider.url}"
max_response_bytes = 100000
[tools.fetch]
hosts = ["*:{port}"]
[tools.inside]
hosts = ["*:{port}"]
private_addresses = true
[tools.mean]
function = "statistics:mean"
[tools.burns]
function = "subprocess:getoutput"
timeout_s = 20
[tools.waits]
function = "subprocess:getoutput"
timeout_s = 0.5
[tools.ends]
function = "os:_exit"
[tools.variables]
function = "os:getenv"
[tools.missing]
function = "no_such_module_here:f"
[judges.strict]
url = "{provider.url}/v1"
model = "large"
key = "lab"
"""
    async with tools_executor(tmp_path, text) as executor:
        yield executor


async def test_a_call_is_the_request_that_it_names(tools: ToolsExecutor) -> None:
    call = call_attempt("search", "POST items?a=1", query={"b": "x y"}, json={"q": 1}, headers={"accept": "text/plain"})
    told = answered(await tools.run(call))
    assert (told["status"], told["headers"]["content-type"]) == (200, "application/json; charset=utf-8")
    assert "set-cookie" not in {name.lower() for name in told["headers"]}
    assert '"/v2/items"' in told["body"]
    assert '"b": "x y"' in told["body"]
    assert '"Content-Type": "application/json"' in told["body"]


async def test_what_is_not_below_the_url_of_a_tool_is_not_reached(
    tools: ToolsExecutor, provider: LimitedProvider
) -> None:
    for path in (
        "../who",
        "/../who",
        "a/../../who",
        "%2e%2e/who",
        "..%2fwho",
        f"{provider.url}/who",
        f"{provider.url}/v22",
    ):
        result = failure(await tools.run(call_attempt("search", f"GET {path}")))
        assert (result.kind, result.reason) == (POLICY, "host_refused")
    assert provider.seen == []


async def test_an_api_that_breaks_is_infra_and_what_it_said_is_kept(tools: ToolsExecutor) -> None:
    result = await tools.run(call_attempt("all", "GET status/503"))
    assert (failure(result).kind, failure(result).reason) == (INFRA, "provider_failed")
    assert answered(result)["status"] == 503


async def test_an_api_that_is_not_there_is_infra(tools: ToolsExecutor, provider: LimitedProvider) -> None:
    port = int(provider.url.rpartition(":")[2])
    result = failure(await tools.run(call_attempt("inside", f"GET http://no-such-name.invalid:{port}/")))
    assert (result.kind, result.reason) == (INFRA, "tool_unreachable")


async def test_a_large_answer_is_cut_and_a_binary_one_is_encoded(
    tools: ToolsExecutor, provider: LimitedProvider
) -> None:
    large = answered(await tools.run(call_attempt("all", f"GET {provider.url}/large", query={"bytes": 300_000})))
    assert (len(large["body"]), large["truncated"]) == (100_000, True)
    assert answered(await tools.run(call_attempt("all", f"GET {provider.url}/binary")))["body_base64"] == "/wD+"


@pytest.mark.parametrize(
    ("service", "url"),
    [
        ("search", "http://example.com/"),
        ("search", "http://127.0.0.1:1/"),
        ("search", "http://user:word@localhost:{port}/"),
        ("search", "ftp://localhost:{port}/"),
        ("search", "file:///etc/passwd"),
        ("search", "//example.com:{port}/"),
        ("fetch", "http://127.0.0.1:{port}/"),
        ("fetch", "http://localhost:{port}/"),
        ("fetch", "http://[::1]:{port}/"),
        ("fetch", "http://[::ffff:127.0.0.1]:{port}/"),
        ("fetch", "http://0x7f000001:{port}/"),
        ("fetch", "http://2130706433:{port}/"),
        ("fetch", "http://127.1:{port}/"),
        ("fetch", "http://169.254.169.254:{port}/"),
    ],
)
async def test_no_call_reaches_what_its_tool_may_not(
    tools: ToolsExecutor, provider: LimitedProvider, service: str, url: str
) -> None:
    port = provider.url.rpartition(":")[2]
    result = failure(await tools.run(call_attempt(service, "GET", url=url.format(port=port))))
    assert result.kind == POLICY
    assert result.reason in ("host_refused", "bad_arguments")
    assert provider.seen == []


async def test_a_redirect_to_elsewhere_is_told_and_not_followed(
    tools: ToolsExecutor, provider: LimitedProvider
) -> None:
    for there in ("http://169.254.169.254/latest", "file:///etc/passwd", "http://example.com/", "http://["):
        told = answered(await tools.run(call_attempt("all", f"GET {provider.url}/redirect", query={"to": there})))
        assert (told["status"], told["headers"]["location"]) == (302, there)
    assert set(provider.seen) == {"/redirect"}


async def test_a_circle_of_redirects_ends(tools: ToolsExecutor, provider: LimitedProvider) -> None:
    told = answered(await tools.run(call_attempt("all", f"GET {provider.url}/circle")))
    assert (told["status"], provider.seen) == (302, ["/circle"] * 6)


async def test_a_name_that_turns_inward_is_refused_at_the_connection(
    tools: ToolsExecutor, provider: LimitedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name is looked up once, and what was looked at is what is connected to."""
    looked_up: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        looked_up.append(host)
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(anyio, "getaddrinfo", getaddrinfo)
    port = provider.url.rpartition(":")[2]
    result = failure(await tools.run(call_attempt("fetch", f"GET http://rebinding.example.com:{port}/")))
    assert (result.kind, result.reason, looked_up) == (POLICY, "host_refused", ["rebinding.example.com"])
    assert provider.seen == []


async def test_names_of_private_addresses_are_reached_where_the_tool_allows_it(
    tools: ToolsExecutor, provider: LimitedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[tuple[int, int, int, str, tuple[str, int]]]:
        return [(2, 1, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    port = provider.url.rpartition(":")[2]
    told = answered(await tools.run(call_attempt("inside", f"GET http://search.internal:{port}/x")))
    assert told["status"] == 200


@pytest.mark.parametrize(
    ("method", "arguments", "named"),
    [
        ("DELETE x", {}, "method"),
        ("GET x", {"headers": {"Authorization": "Bearer mine"}}, "Authorization"),
        ("GET x", {"headers": {"Host": "inside"}}, "Host"),
        ("GET x", {"headers": {"accept": "a\r\nHost: inside"}}, "accept"),
        ("GET x", {"headers": {"accept": "a" * 9000}}, "8192"),
        ("GET x", {"headers": []}, "headers"),
        ("GET x", {"query": {"a": ["b"]}}, "query"),
        ("GET x", {"verify": False}, "verify"),
        ("GET", {"url": "http://["}, "url"),
    ],
)
async def test_arguments_that_are_none_are_the_callers_fault(
    tools: ToolsExecutor, provider: LimitedProvider, method: str, arguments: dict[str, Any], named: str
) -> None:
    result = failure(await tools.run(call_attempt("search", method, **arguments)))
    assert (result.kind, result.reason) == (POLICY, "bad_arguments")
    assert named in result.message
    assert provider.seen == []


async def test_a_call_that_is_stopped_ends(tools: ToolsExecutor, provider: LimitedProvider) -> None:
    provider.takes_s = 60.0
    attempt = call_attempt("search", "GET slow")
    results = []

    async def run() -> None:
        results.append(await tools.run(attempt))

    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            await until(lambda: bool(provider.accepted))
            attempt.stop_requested.set()
    assert isinstance(results[0], Stopped)


async def test_an_api_that_is_too_slow_is_infra(tools: ToolsExecutor, provider: LimitedProvider) -> None:
    provider.takes_s = 60.0
    result = failure(await tools.run(call_attempt("search", "GET slow")))
    assert (result.kind, result.reason) == (INFRA, "tool_timeout")


async def test_the_processor_time_of_a_function_is_told_once(tools: ToolsExecutor) -> None:
    burn = f"{sys.executable} -c 'import time\nwhile time.process_time() < 0.3: pass'"
    burnt = await tools.run(call_attempt("burns", cmd=burn))
    assert answered(burnt) == ""
    assert 0.3 <= burnt.usage.cpu_s < 1.0
    assert (await tools.run(call_attempt("burns", cmd=":"))).usage.cpu_s < 0.3


async def test_a_functions_process_sees_no_key(tools: ToolsExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_KEY", SECRET)
    assert "OTHER_KEY" in os.environ
    assert answered(await tools.run(call_attempt("variables", key="OTHER_KEY"))) is None
    assert answered(await tools.run(call_attempt("variables", key="PATH")))


@pytest.mark.parametrize(
    ("tool", "arguments", "expected", "named"),
    [
        ("mean", {"data": []}, (ENV, "tool_raised"), "StatisticsError"),
        ("ends", {"status": 3}, (INFRA, "tool_died"), "os:_exit"),
        ("waits", {"cmd": "sleep 60"}, (INFRA, "tool_timeout"), "no answer in time"),
        ("missing", {}, (ENV, "tool_raised"), "no_such_module_here"),
    ],
)
async def test_a_function_without_a_value_fails_and_the_next_call_is_served(
    tools: ToolsExecutor, tool: str, arguments: dict[str, Any], expected: tuple[int, str], named: str
) -> None:
    result = failure(await tools.run(call_attempt(tool, **arguments)))
    assert (result.kind, result.reason) == expected
    assert named in result.message
    assert answered(await tools.run(call_attempt("mean", data=[1, 2, 6]))) == 3


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Fine. Score: 7", 7.0),
        # The last number after its thoughts, as a whole.
        ("<think>score: 2</think>Score: 8. No: score: 9", 9.0),
        ("Rating: 5e-1, as I said", 0.5),
    ],
)
async def test_a_judge_scores_and_its_answer_is_kept(
    tools: ToolsExecutor, provider: LimitedProvider, answer: str, score: float
) -> None:
    provider.key, provider.answer, provider.choice = SECRET, answer, {"finish_reason": "stop"}
    result = expect(Completed, await tools.run(judge_attempt("strict", "What is 6 x 7?")))
    assert (result.succeeded.reward.score, result.succeeded.reward.text) == (score, answer)


@pytest.mark.parametrize("answer", ["I cannot tell.", "<think>score: 2</think>I cannot tell."])
async def test_a_judgement_without_a_score_is_no_zero_and_has_cost_its_tokens(
    tools: ToolsExecutor, provider: LimitedProvider, answer: str
) -> None:
    provider.answer = answer
    judged = await tools.run(judge_attempt("strict", "?"))
    result = failure(judged)
    assert (result.kind, result.reason, result.partial.reward.text) == (ENV, "score_missing", answer)
    used = {"calls:strict": 1.0, "tokens_in": 50.0, "tokens_cached": 30.0, "tokens_out": 20.0}
    assert dict(judged.usage.cost.used) == used


@pytest.mark.parametrize(
    ("answer", "choice", "words"),
    [
        ("Score: 1", {"finish_reason": "length"}, "finish_reason is length"),
        ("Score: 7", {"finish_reason": "content_filter"}, "finish_reason is content_filter"),
        ("Score: 0", {"message": {"content": "Score: 0", "refusal": "I must not."}}, "refused: I must not."),
        (" ", {"finish_reason": "stop"}, "it is empty"),
        ("<think>Score: 7</think>\n", {"finish_reason": "stop"}, "it is empty"),
        (None, {"finish_reason": "stop"}, "it is empty"),
    ],
)
async def test_a_judgement_that_is_no_verdict_is_infra(
    tools: ToolsExecutor, provider: LimitedProvider, answer: str | None, choice: dict[str, object], words: str
) -> None:
    provider.answer, provider.choice = answer, choice
    result = failure(await tools.run(judge_attempt("strict", "?")))
    assert (result.kind, result.reason, words in result.message) == (INFRA, "no_verdict", True)
    assert result.partial.reward == outcome_pb2.RewardResult(text=answer or "")


@pytest.mark.parametrize(
    ("status", "error", "expected"),
    [
        (401, f"Incorrect API key provided: {SECRET}", (INFRA, "key_refused")),
        (402, "Insufficient Balance", (INFRA, "insufficient_quota")),
        (403, "This key has no access", (INFRA, "provider_refused")),
        (400, "Budget has been exceeded! Current cost: 3", (INFRA, "provider_refused")),
        (400, "Your credit balance is too low", (INFRA, "provider_refused")),
        (400, "Unsupported parameter: 'max_tokens'", (INFRA, "provider_refused")),
        (429, {"message": "Check your plan.", "code": "insufficient_quota"}, (INFRA, "insufficient_quota")),
        (400, "This model's maximum context length is 8 tokens", (ENV, "prompt_too_long")),
    ],
)
async def test_a_judge_that_refuses_says_why_and_keeps_its_key(
    tools: ToolsExecutor, provider: LimitedProvider, status: int, error: object, expected: tuple[int, str]
) -> None:
    provider.refusal = (status, error)
    result = failure(await tools.run(judge_attempt("strict", "?", deadline_s=60.0)))
    assert (result.kind, result.reason) == expected
    assert (error["message"] if isinstance(error, dict) else str(error)).replace(SECRET, "***") in result.message
    assert SECRET not in str(result)


def limited(url: str, quota: str) -> str:
    """A tools file with one tool and its quota."""
    return f'[keys.k]\n[quotas.k]\n{quota}\n[tools.x]\nurl = "{url}"\nkey = "k"\n'


def judged(url: str) -> str:
    """A tools file with one judge and its quota."""
    quota = "[keys.k]\n[quotas.k]\ntokens_per_minute = 60_000_000\n"
    return f'{quota}[judges.strict]\nurl = "{url}/v1"\nmodel = "large"\nkey = "k"\n'


async def run_all(executors: list[ToolsExecutor], calls: int) -> list[object]:
    """Runs so many calls at once, spread over the executors."""
    results: list[object] = []

    async def one(number: int) -> None:
        results.append(await executors[number % len(executors)].run(call_attempt("x", f"GET {number}")))

    with anyio.fail_after(_DEADLINE_S):
        async with anyio.create_task_group() as tasks:
            for number in range(calls):
                tasks.start_soon(one, number)
    return results


async def test_a_limit_that_is_met_is_waited_for_here(tmp_path: Path) -> None:
    """The file allows more than the provider: its 429 and Retry-After are obeyed, and all calls succeed."""
    provider = LimitedProvider(requests=StrictBucket(100.0, 1))
    async with serve_provider(provider), tools_executor(tmp_path, limited(provider.url, "concurrency = 3")) as tools:
        results = await run_all([tools], 20)
    assert all(isinstance(each, Completed) for each in results)
    assert provider.refused
    assert len(provider.accepted) == 20
    # What was refused and made again was a call as well.
    calls = sum(each.usage.cost.used["calls:x"] for each in results if isinstance(each, Completed))
    assert calls == 20 + provider.refused


async def test_what_a_provider_says_is_left_is_obeyed_before_it_refuses(tmp_path: Path) -> None:
    """The file knows no rate, and the provider tells one: no call is ever refused."""
    provider = LimitedProvider(requests=FixedWindow(5, 0.4))
    async with serve_provider(provider), tools_executor(tmp_path, limited(provider.url, "concurrency = 1")) as tools:
        results = await run_all([tools], 17)
    assert all(isinstance(each, Completed) for each in results)
    assert (provider.refused, len(provider.accepted)) == (0, 17)


async def test_others_that_spend_the_key_are_seen_in_what_is_left(tmp_path: Path) -> None:
    """Half of the key is spent elsewhere: the file allows all of it, and the provider's word counts."""
    window = FixedWindow(10, 0.4)
    provider = LimitedProvider(requests=window)
    quota = "concurrency = 1\nrequests_per_minute = 60000\nrequests_burst = 1000"
    async with serve_provider(provider), tools_executor(tmp_path, limited(provider.url, quota)) as tools:
        for _ in range(4):
            assert isinstance(await tools.run(call_attempt("x", "GET a")), Completed)
            window.seen = min(window.seen + 5, window.most - 1)
        await run_all([tools], 10)
    assert provider.refused == 0


async def test_a_wait_beyond_the_deadline_is_told_as_a_quotas(tmp_path: Path) -> None:
    provider = LimitedProvider(requests=SlidingWindow(1, 30.0))
    async with serve_provider(provider), tools_executor(tmp_path, limited(provider.url, "concurrency = 3")) as tools:
        assert isinstance(await tools.run(call_attempt("x", "GET a")), Completed)
        result = failure(await tools.run(call_attempt("x", "GET b", deadline_s=5.0)))
        assert (result.kind, result.reason) == (QUOTA, "quota_exhausted")
        assert 20.0 < result.retry_after_s <= 30.0
        again = failure(await tools.run(call_attempt("x", "GET c", deadline_s=5.0)))
    assert again.kind == QUOTA
    assert provider.refused == 1, "nobody asks while the provider wants a break"


async def test_a_pause_is_told_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    provider = LimitedProvider(requests=SlidingWindow(1, 2.0))
    told: list[dict[str, tuple[bool, int]]] = []
    async with serve_provider(provider), tools_executor(tmp_path, limited(provider.url, "concurrency = 3")) as tools:
        before = tools.service_states()
        tools.on_service_change(
            lambda: told.append({each.name: (each.no_room, each.instances) for each in tools.service_states()})
        )
        for path in ("a", "b"):
            assert isinstance(await tools.run(call_attempt("x", f"GET {path}")), Completed)
        await until(lambda: len(told) >= 2)
    assert [(each.no_room, each.instances, each.problem) for each in before] == [(False, 64, "")]
    assert [each["x"] for each in told[:2]] == [(True, 0), (False, 64)]
    assert provider.refused == 1


async def test_a_judge_learns_what_a_call_takes(tmp_path: Path) -> None:
    provider = LimitedProvider()
    reports: list[int] = []
    async with serve_provider(provider), tools_executor(tmp_path, judged(provider.url)) as tools:

        def booked() -> int:
            (state,) = [each for each in tools.service_states() if each.name == "strict"]
            return state.demand["k:tokens"]

        tools.on_service_change(lambda: reports.append(booked()))
        assert booked() == 1000
        for _ in range(80):
            assert isinstance(await tools.run(judge_attempt("strict", "?")), Completed)
        registered = [each.demand["k:tokens"] for each in tools.services() if each.name == "strict"]
    assert 100 <= booked() <= 140, "the provider says 100"
    assert registered == [booked()]
    assert len(reports) < 15, "not with every call"


@pytest.mark.parametrize("managers", [1, 3])
async def test_no_more_than_allowed_with_one_manager_and_with_three(
    managers: int, tmp_path: Path, redis_url: str
) -> None:
    provider = LimitedProvider(requests=StrictBucket(100.0, 30), tokens=None, most_at_once=4, takes_s=0.01)
    text = "concurrency = 4\nrequests_per_minute = 6000\nrequests_burst = 30"
    shared = {"quota_redis": redis_url, "quota_namespace": str(tmp_path)} if managers > 1 else {}
    async with serve_provider(provider), AsyncExitStack() as stack:
        opened = [tools_executor(tmp_path, limited(provider.url, text), **shared) for _ in range(managers)]
        results = await run_all([await stack.enter_async_context(each) for each in opened], 150)
    assert all(isinstance(each, Completed) for each in results)
    assert (provider.refused, len(provider.accepted)) == (0, 150)
    assert provider.at_once <= 4
