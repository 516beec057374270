"""Tools that share a manager: what a provider says of one key, host or call stops no other, and no key is told."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

import anyio
import pytest
from callsheet.managers.executor import Attempt, AttemptResult, Broken, Completed, Stopped
from callsheet.managers.settings import ManagerSettings
from callsheet.managers.tools.executor import ToolsExecutor
from callsheet.v1 import outcome_pb2
from structlog.testing import capture_logs

from tests.support.cutting_proxy import cutting_proxy
from tests.support.expected import expect
from tests.support.limited_provider import LimitedProvider, serve_provider
from tests.support.ports import free_port
from tests.support.raw_answers import raw_answers
from tests.support.servers import redis_server
from tests.support.tool_attempts import answered, call_attempt, failure, judge_attempt, tools_executor
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
SECRET = "sk-01234+5678/9&abcdef"
ENV, INFRA, QUOTA = (
    outcome_pb2.FAILURE_KIND_ENV,
    outcome_pb2.FAILURE_KIND_INFRA,
    outcome_pb2.FAILURE_KIND_QUOTA,
)
_DEADLINE_S = 60.0
_NO_MONEY = '{{"error": {{"message": "You have no money.", "code": "insufficient_quota"}}}}'


@pytest.fixture
async def providers() -> AsyncIterator[list[LimitedProvider]]:
    """An API, and two hosts beside it."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(serve_provider(LimitedProvider())) for _ in range(3)]


@pytest.fixture
async def tools(
    providers: list[LimitedProvider], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ToolsExecutor]:
    """A tool and a judge of the API, and tools without a key."""
    monkeypatch.setenv("LAB_KEY", SECRET)
    hosts = [each.url.removeprefix("http://") for each in providers]
    text = f"""
[keys.lab]
variable = "LAB_KEY"
[tools.search]
url = "{providers[0].url}"
key = "lab"
hosts = {hosts[1:]}
max_response_bytes = 100
[tools.open]
url = "{providers[0].url}"
[judges.strict]
url = "{providers[0].url}/v1"
model = "large"
key = "lab"
"""
    async with tools_executor(tmp_path, text) as executor:
        yield executor


def states(tools: ToolsExecutor) -> dict[str, tuple[bool, str]]:
    """Whether calls of services are held back, and their problems."""
    return {each.name: (each.no_room, each.problem) for each in tools.service_states()}


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ((401, {}, "who are you"), (INFRA, "key_refused")),
        ((403, {}, '{{"error": {{"message": "Invalid API key: {key}"}}}}'), (INFRA, "key_refused")),
        ((403, {}, '{{"detail": "API key not valid"}}'), (INFRA, "key_refused")),
        ((403, {"WWW-Authenticate": 'Bearer error="invalid_token"'}, ""), (INFRA, "key_refused")),
        ((429, {}, _NO_MONEY), (INFRA, "insufficient_quota")),
        ((402, {}, "You have no money."), (INFRA, "insufficient_quota")),
        ((401, {}, '{{"error": "half of \\ud83d, and no user has {net}"}}'), (INFRA, "key_refused")),
        ((403, {}, "CSRF Failed: CSRF token missing."), None),
        ((403, {}, "The page token is invalid"), None),
        ((403, {"X-RateLimit-Remaining": "0" * 5000}, "\\ud83d"), None),
        ((403, {}, "You may not see this page"), None),
        ((403, {"WWW-Authenticate": 'Bearer error="insufficient_scope"'}, ""), None),
        ((403, {}, "This token does not have the scope that this page needs"), None),
        ((403, {}, "Resource not accessible by personal access token"), None),
        ((404, {}, "no such key"), None),
        ((418, {}, "tea"), None),
    ],
)
async def test_what_an_api_holds_against_a_key_is_no_result_and_no_score(
    tools: ToolsExecutor,
    providers: list[LimitedProvider],
    page: tuple[int, dict[str, str], str],
    expected: tuple[int, str] | None,
) -> None:
    providers[0].pages = dict.fromkeys(("/x", "/v1/chat/completions"), page)
    with capture_logs() as lines:
        results = [await tools.run(call_attempt("search", "GET x")) for _ in range(20)]
    judged = failure(await tools.run(judge_attempt("strict", "?")))
    if page[0] == 401:
        assert answered(await tools.run(call_attempt("open", "GET x")))["status"] == 401, "it has no key"
    if expected is None:
        assert {answered(each)["status"] for each in results} == {page[0]}
        assert states(tools)["search"] == (False, "")
        return
    failed = failure(results[0])
    assert {(failure(each).kind, failure(each).reason) for each in results} == {expected}
    assert (judged.kind, judged.reason) == expected
    assert len([line for line in lines if line["event"] == "key_not_taken"]) == 1
    assert len(providers[0].seen) in {21, 22}, "none is asked again"
    assert states(tools)["search"] == (False, failed.message), "calls go on, and the first that is taken ends this"
    assert SECRET not in failed.message
    assert isinstance(await tools.run(call_attempt("search", "GET good")), Completed)
    assert states(tools)["search"] == (False, "")


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {"RateLimit-Remaining": "0", "RateLimit-Reset": "3000"}),
        (200, {"x-ratelimit-remaining-requests": "0"}),
        (429, {"Retry-After": "3000"}),
        (503, {"Retry-After": "3000"}),
        (401, {}),
    ],
)
async def test_a_host_speaks_for_itself_and_for_no_key(
    tools: ToolsExecutor, providers: list[LimitedProvider], status: int, headers: dict[str, str]
) -> None:
    own, strict, other = providers
    strict.pages["/x"] = (status, headers, "key: {key}")
    own.pages["/led"] = (302, {"Location": f"{strict.url}/x"}, "")
    first = await tools.run(call_attempt("search", f"GET {strict.url}/x"))
    with anyio.fail_after(_DEADLINE_S):
        again = await tools.run(call_attempt("search", "GET led"))
        for url in (own.url, other.url):
            assert answered(await tools.run(call_attempt("search", f"GET {url}/good")))["status"] == 200
    assert states(tools)["search"] == (False, "")
    if "3000" in headers.values():
        assert (failure(again).kind, failure(again).reason) == (INFRA, "quota_exhausted"), "its first request was made"
        assert 2000 < failure(again).retry_after_s <= 3000
        assert strict.seen == ["/x"]
    else:
        assert [answered(each)["body"] for each in (first, again)] == ["key: "] * 2, "neither is sent the key"


@pytest.mark.parametrize("form", ["{key}", "{quoted}", "{base64}"])
async def test_a_key_is_in_no_part_of_an_answer(
    tools: ToolsExecutor, providers: list[LimitedProvider], form: str
) -> None:
    own, other, _ = providers
    echo = {"ETag": form, "Content-Language": f"x{form}", "Location": f"{other.url}/{form}"}
    own.pages["/x"] = (200, echo, f"{form} and {form}")
    # The bound of the tool is in the middle of a key, at each of its characters.
    own.pages |= {f"/{before}": (200, {}, f"{'x' * before}{form}{form}") for before in range(60, 100)}
    own.pages["/led"] = (302, {"Location": f"{other.url}/{form}"}, "")
    own.answer = f"It asked with {SECRET}. Score: 7"
    told = [answered(await tools.run(call_attempt("search", f"GET {path}"))) for path in own.pages]
    judged = expect(Completed, await tools.run(judge_attempt("strict", "?")))
    assert judged.succeeded.reward.text == "It asked with ***. Score: 7"
    assert "***" in str(told)
    assert not any(part in str(told) for part in (SECRET[:5], "sk-01234%2B5", "c2stMDEyM"))
    assert SECRET not in str(other.seen)


@pytest.mark.parametrize(
    ("head", "endless"),
    [
        (b"", b"HTTP/1.1 103 Early Hints\r\n\r\n"),
        (b"", b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1;" + b"a=b;" * 900 + b"\r\nx\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"a=b;"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"a: b\r\n"),
    ],
)
async def test_a_server_that_sends_no_body_without_end_is_left(tmp_path: Path, head: bytes, endless: bytes) -> None:
    async with raw_answers(head, endless * (1 << 12)) as url:
        text = f'[tools.x]\nurl = "{url}"\ntimeout_s = 1000\n'
        async with tools_executor(tmp_path, text) as tools:
            with anyio.fail_after(_DEADLINE_S):
                result = failure(await tools.run(call_attempt("x", "GET a")))
    assert (result.kind, result.reason) == (INFRA, "tool_unreachable")


_ONE = '[keys.k]\n[quotas.k]\nconcurrency = 1\n[tools.x]\nurl = "{url}"\nkey = "k"\n'


async def test_jobs_take_turns_at_a_quota(tmp_path: Path, providers: list[LimitedProvider]) -> None:
    providers[0].takes_s = 0.02

    async def call(executor: ToolsExecutor, job: str, number: int, deadline_s: float = 30.0) -> AttemptResult:
        attempt = call_attempt("x", f"GET {job}{number}", deadline_s=deadline_s)
        attempt.action.job_id = job
        return await executor.run(attempt)

    text = _ONE.format(url=providers[0].url)
    async with tools_executor(tmp_path, text) as executor, anyio.create_task_group() as tasks:
        for number in range(40):
            tasks.start_soon(call, executor, "many", number)
        await until(lambda: bool(providers[0].seen))
        for number in range(3):
            tasks.start_soon(call, executor, "few", number)
        late = failure(await call(executor, "many", 40, 0.1))
    assert (late.kind, late.reason, late.message) == (
        QUOTA,
        "quota_exhausted",
        "quota 'k': the call's time ran out while it waited for its turn",
    )
    assert [each for each in providers[0].seen[:8] if "few" in each] == ["/few0", "/few1", "/few2"]
    assert providers[0].seen[-1] == "/many39"


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("first_s", [0.5, 30.0])
async def test_calls_wait_while_the_store_of_quotas_is_away(
    tmp_path: Path, providers: list[LimitedProvider], hangs: bool, first_s: float
) -> None:
    port, results = str(free_port()), list[AttemptResult]()
    attempts = [call_attempt("x", "GET a", deadline_s=each) for each in (first_s, 30.0, 30.0)]

    async def call(attempt: Attempt) -> None:
        results.append(await executor.run(attempt))

    with anyio.fail_after(_DEADLINE_S), ExitStack() as redis:
        redis.enter_context(redis_server("--port", port))
        async with cutting_proxy(f"127.0.0.1:{port}") as proxy:
            text, url = _ONE.format(url=providers[0].url), f"redis://{proxy.address}"
            async with tools_executor(tmp_path, text, quota_redis=url, quota_namespace="n") as executor:
                await call(call_attempt("x", "GET a"))
                proxy.silent = hangs
                if not hangs:
                    redis.close()
                async with anyio.create_task_group() as tasks:
                    for attempt in attempts:
                        tasks.start_soon(call, attempt)
                    await until(lambda: states(executor)["x"][0] and "Redis" in states(executor)["x"][1])
                    short = failure(await executor.run(call_attempt("x", "GET b", deadline_s=0.5)))
                    # The head of the line unless it has failed, and the last in it.
                    attempts[0].stop_requested.set()
                    attempts[2].stop_requested.set()
                    with anyio.fail_after(inspect.signature(ManagerSettings).parameters["stop_grace_s"].default):
                        await until(lambda: len(results) == 3)
                    proxy.silent = False
                    if not hangs:
                        redis.enter_context(redis_server("--port", port))
                    await until(lambda: len(results) == 4 and not states(executor)["x"][0])
    assert [type(each) for each in results] == [Completed, Broken if first_s < 1.0 else Stopped, Stopped, Completed]
    for failed in (short, *(each.failed for each in results if isinstance(each, Broken))):
        assert (failed.kind, failed.reason, failed.retry_after_s) == (QUOTA, "quota_store_unavailable", 1.0)
