"""Tools managers of a stack: what clients ask of them goes through the scheduler, which books their quotas."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import anyio
import psutil
import pytest
from callsheet.client import (
    Client,
    ConversationText,
    Failed,
    FailureKind,
    Job,
    Outcome,
    Retry,
    Succeeded,
    Timeouts,
    ToolCall,
    ToolCallResult,
    Unservable,
)
from callsheet.client.admin import AdminClient
from callsheet.client.words.options import ActionOptions
from callsheet.deploy.stack import check_machine, local_stack
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.tools.redis_quotas import check_redis
from callsheet.options.common import LogLevel

from tests.support.limited_provider import LimitedProvider, SlidingWindow, StrictBucket, serve_provider
from tests.support.ports import free_port
from tests.support.servers import redis_server
from tests.support.tools_processes import tools_managers, write_tools
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
_DEADLINE_S = 120.0


async def test_calls_functions_and_judgements_through_a_scheduler(tmp_path: Path) -> None:
    provider = LimitedProvider()
    async with serve_provider(provider):
        tools = write_tools(tmp_path, provider.url, "concurrency = 4")
        settings = StackSettings(tmp_path, managers=("tools",), given={"tools_file": tools})
        with anyio.fail_after(_DEADLINE_S):
            async with local_stack(settings) as stack, Client(stack.address) as client:
                async with await client.open_job("j") as job:
                    found = await job.tool_call("search", "GET items", b'{"query": {"q": "x"}}')
                    mean = await job.tool_call("mean", "call", b'{"data": [1, 2, 6]}')
                    verdict = await job.judge("strict", "Score: 0 to 10", ConversationText(prompt="?", response="!"))
                    summary = job.step_summary()
                async with AdminClient(stack.address) as admin:
                    status = await admin.status()
    assert isinstance(found, Succeeded)
    assert b'\\"path\\": \\"/items\\"' in found.value.response
    assert isinstance(mean, Succeeded)
    assert mean.value.response == b"3"
    assert isinstance(verdict, Succeeded)
    assert verdict.value.score == 7.0
    tokens = {"tokens_in": 50.0, "tokens_cached": 30.0, "tokens_out": 20.0}
    # A function's processor time is counted in ticks: this one takes none or a few.
    costs = [
        {name: each for name, each in told.usage.cost.used.items() if name != "cpu"} for told in (found, mean, verdict)
    ]
    assert costs == [{"calls:search": 1.0}, {"calls:mean": 1.0}, {"calls:strict": 1.0} | tokens]
    assert (summary["used/calls"], summary["used/tokens_cached"]) == (3.0, 30.0)
    assert [node.capacity for node in status.nodes] == [{"k:calls": 4}]


async def test_a_wait_that_no_attempt_has_time_for_goes_back_to_the_queue(tmp_path: Path) -> None:
    provider = LimitedProvider(requests=SlidingWindow(1, 6.0))
    async with serve_provider(provider):
        tools = write_tools(tmp_path, provider.url, "concurrency = 4")
        settings = StackSettings(tmp_path, managers=("tools",), given={"tools_file": tools})
        with anyio.fail_after(_DEADLINE_S):
            async with (
                local_stack(settings) as stack,
                Client(stack.address) as client,
                await client.open_job("j") as job,
            ):
                short = Timeouts(start_to_close_s=1.0)
                await job.tool_call("search", "GET a")
                again = await job.tool_call("search", "GET b", timeouts=short)
                never = await job.tool_call("search", "GET c", timeouts=short, retry=Retry(max_attempts=1))
    assert isinstance(again, Succeeded)
    assert again.attempts == 2
    assert isinstance(never, Failed)
    assert never.kind is FailureKind.QUOTA
    assert (never.retry_after_s or 0.0) > 1.0


async def test_others_serve_while_a_provider_wants_a_break(tmp_path: Path) -> None:
    strict, patient = LimitedProvider(requests=SlidingWindow(1, 600.0)), LimitedProvider()
    async with serve_provider(strict), serve_provider(patient):
        files = []
        for name, provider in (("strict", strict), ("patient", patient)):
            (tmp_path / name).mkdir()
            files.append(write_tools(tmp_path / name, provider.url, "requests_per_minute = 60_000"))
        with anyio.fail_after(_DEADLINE_S):
            async with (
                local_stack(StackSettings(tmp_path / "data", managers=())) as stack,
                Client(stack.address) as client,
                AdminClient(stack.address) as admin,
                await client.open_job("j") as job,
            ):
                once = ActionOptions(
                    timeouts=Timeouts(start_to_close_s=5.0), retry=Retry(max_attempts=1), unservable=Unservable.WAIT
                )
                with tools_managers(1, stack.address, files[0], name="strict"):
                    first = await job.tool_call("search", "GET first", **once)
                    broken = await job.tool_call("search", "GET second", **once)
                    with tools_managers(1, stack.address, files[1], name="patient"):
                        results = [await job.tool_call("search", f"GET {number}", **once) for number in range(20)]
                        status = await admin.status()
                    last = await job.submit(ToolCall("search", "GET last"), **once)
                    explained = (await admin.explain("j", last.action_id)).explanation
    assert isinstance(first, Succeeded)
    assert isinstance(broken, Failed)
    assert broken.kind is FailureKind.QUOTA
    assert all(isinstance(each, Succeeded) for each in results)
    assert (len(strict.seen), strict.refused) == (2, 1)
    told = {
        service.name: service.problem
        for each in status.managers
        if each.manager_id == "strict-0"
        for service in each.services
    }
    assert told["mean"] == ""
    for text in (told["search"], told["strict"], explained):
        assert "quota 'k' allows no call until" in text


async def call_all(job: Job, calls: int, timeouts: Timeouts | None = None) -> list[Outcome[ToolCallResult]]:
    """Calls the API so many times at once."""
    results: list[Outcome[ToolCallResult]] = []

    async def call(number: int) -> None:
        options = ActionOptions(unservable=Unservable.WAIT, timeouts=timeouts or Timeouts())
        results.append(await job.tool_call("search", f"GET {number}", idempotent=True, **options))

    async with anyio.create_task_group() as tasks:
        for number in range(calls):
            tasks.start_soon(call, number)
    return results


async def test_a_call_that_waited_for_its_quota_has_all_its_time_still(tmp_path: Path) -> None:
    """Load makes no false timeouts: the execution clock stands while a call waits."""
    provider = LimitedProvider(most_at_once=1, takes_s=0.7)
    async with serve_provider(provider):
        tools = write_tools(tmp_path, provider.url, "requests_per_minute = 6000")
        settings = StackSettings(tmp_path, managers=("tools",), given={"tools_file": tools})
        with anyio.fail_after(_DEADLINE_S):
            async with (
                local_stack(settings) as stack,
                Client(stack.address) as client,
                await client.open_job("j") as job,
            ):
                results = await call_all(job, 4, Timeouts(start_to_close_s=5.0))
    waits = [each.timeline.waited_s.get("quota", 0.0) for each in results if isinstance(each, Succeeded)]
    assert len(waits) == 4
    assert max(waits) > 0.5, "the provider let one in after the other"


async def test_the_quota_outlives_a_manager_that_is_killed(tmp_path: Path) -> None:
    provider = LimitedProvider(requests=StrictBucket(40.0, 10), takes_s=0.05)
    with redis_server() as redis_url:
        async with serve_provider(provider):
            tools = write_tools(tmp_path, provider.url, "requests_per_minute = 2400\nrequests_burst = 10")
            with anyio.fail_after(_DEADLINE_S):
                async with (
                    local_stack(StackSettings(tmp_path / "data", managers=())) as stack,
                    Client(stack.address) as client,
                    await client.open_job("j") as job,
                ):
                    with tools_managers(3, stack.address, tools, redis_url) as processes:

                        async def kill_one() -> None:
                            await until(lambda: len(provider.accepted) >= 40)
                            processes[0].kill()

                        async with anyio.create_task_group() as tasks:
                            tasks.start_soon(kill_one)
                            results = await call_all(job, 120)
    assert all(isinstance(each, Succeeded) for each in results)
    assert provider.refused == 0
    assert len(set(provider.seen)) == 120


async def test_a_key_is_in_no_log_no_journal_no_answer_and_no_other_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, port = "sk-never-to-be-seen-0123456789", str(free_port())
    monkeypatch.setenv("KEY_OF_THE_LAB", secret)
    monkeypatch.setenv("CALLSHEET_QUOTA_REDIS", f"redis://:{secret}@127.0.0.1:{port}")
    provider = LimitedProvider(key=secret)
    tools = tmp_path / "tools.toml"
    async with serve_provider(provider):
        tools.write_text(f"""
[keys.k]
variable = "KEY_OF_THE_LAB"
[quotas.k]
concurrency = 1
[tools.counted]
url = "{provider.url}"
key = "k"
[tools.environment]
function = "os:getenv"
[judges.strict]
url = "{provider.url}/v1"
model = "m"
key = "k"
""")
        settings = StackSettings(
            tmp_path / "data", managers=("tools", "noop"), given={"tools_file": tools}, log_level=LogLevel.DEBUG
        )
        with anyio.fail_after(_DEADLINE_S), ExitStack() as redis:
            redis.enter_context(redis_server("--port", port, "--requirepass", secret))
            async with (
                local_stack(settings) as stack,
                Client(stack.address) as client,
                AdminClient(stack.address) as admin,
                await client.open_job("j") as job,
            ):
                once = ActionOptions(
                    retry=Retry(max_attempts=1), timeouts=Timeouts(start_to_close_s=1.0, schedule_to_close_s=3.0)
                )
                told: list[object] = [
                    await job.tool_call("counted", "GET x", **once),
                    await job.tool_call("environment", "call", b'{"key": "KEY_OF_THE_LAB"}', **once),
                    await job.judge("strict", "?", ConversationText(prompt="?", response="!"), **once),
                ]
                for wrong in (f"x{secret}x@127.0.0.1:{port}", f"{secret}@127.0.0.1:{free_port()}", f"{secret}/@[::1"):
                    with pytest.raises(ValueError, match="quota_redis: ") as refused:
                        check_redis(f"redis://:{wrong}")
                    told.append(str(refused.value))
                redis.close()
                told += [await job.tool_call("counted", f"{method} x", **once) for method in ("GET", "DELETE")]
                waiting = await job.submit(ToolCall("counted", "GET last"), **once)
                told += [await admin.explain("j", waiting.action_id), status := await admin.status()]
                others = [each for each in psutil.Process().children(recursive=True) if "tools" not in each.cmdline()]
                environments = [each.environ() for each in others]
    assert len(environments) >= 2
    assert all(secret not in str(each) for each in environments)
    assert secret not in repr(told)
    assert "while the Redis of quotas cannot be used" in repr(told[-2])
    assert "while the Redis of quotas cannot be used" in repr(status)
    written = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert any(path.suffix == ".log" for path in written)
    assert [path for path in written if secret.encode() in path.read_bytes()] == []


def test_a_file_of_tools_without_a_manager_for_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tools_file"):
        check_machine(StackSettings(tmp_path, managers=("noop",), given={"tools_file": tmp_path / "tools.toml"}))
