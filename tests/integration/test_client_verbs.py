"""Verbs, options, handles and groups, alike in the fake, the async client and the sync client."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import anyio
import pytest
from callsheet.client import (
    AlreadyExistsError,
    Cancelled,
    ChatMessage,
    Client,
    CommandResult,
    ConversationText,
    Demand,
    Elastic,
    EnvResetResult,
    EnvStep,
    Generate,
    GenerateResult,
    InvalidArgumentError,
    NotFoundError,
    Outcome,
    Retry,
    RewardResult,
    Sampling,
    SandboxFile,
    Succeeded,
    SyncClient,
    Timeouts,
    ToolCallResult,
    TrajectoryEnd,
    Unservable,
    Where,
)
from callsheet.client.testing import FakeClient
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import local_stack
from callsheet.deploy.stack_settings import StackSettings

from tests.support.expected import expect
from tests.support.threaded import Threaded

ENDLESS_PROMPT: Final = [99]
"""The fake never ends a generate of this prompt."""
_ENDLESS: Final[Mapping[str, Any]] = {"expected_duration_s": 60.0}
_LARGE = bytes(range(256)) * 8_000
_CONVERSATION = ConversationText("1 + 1?", "2", [ChatMessage("system", "Be brief.")])
_FILE = SandboxFile("t.py", b"")


@pytest.fixture
async def job(client: Any) -> AsyncIterator[Any]:
    """A job of its own for each test."""
    async with await client.open_job(f"job-{uuid.uuid4().hex}") as job:
        yield job


class VerbSuite:
    """The tests; `service` names the service that serves every kind."""

    async def test_every_verb_of_a_trajectory(self, job: Any, service: str) -> None:
        async with job.trajectory("t") as trajectory:
            _check_all(
                job,
                [
                    await trajectory.env_reset(files=[_FILE, SandboxFile("large", _LARGE)], set_up=["python3", "t.py"]),
                    await trajectory.generate([1, 2], Sampling(max_new_tokens=4, stop_token_ids=[9]), model=service),
                    await trajectory.env_step("ls", files=[_FILE]),
                    await trajectory.tool_call(service, "method", b"arguments", idempotent=True),
                    await trajectory.reward_tests("pytest", where=Where.IN_SANDBOX, service=service),
                    await trajectory.reward_tests("pytest", service=service),
                    await trajectory.reward_script("score", files=[_FILE], score_file="score", service=service),
                    await trajectory.reward_model([1, 2], model=service),
                    await trajectory.teacher_log_probs(service, [2, 3], prompt_token_ids=[1]),
                    await trajectory.judge(service, "Is it right?", _CONVERSATION),
                ],
            )

    async def test_every_verb_of_a_job(self, job: Any, service: str) -> None:
        _check_all(
            job,
            [
                await job.generate([1], model=service),
                await job.tool_call(service, "method"),
                await job.reward_tests(["pytest", "{report}"], files=[_FILE], service=service),
                await job.reward_script(["score", "{score}"], files=[_FILE], service=service),
                await job.reward_model(model=service, text=_CONVERSATION),
                await job.teacher_log_probs(service, text=_CONVERSATION),
                await job.judge(service, "Is it right?", _CONVERSATION),
            ],
        )

    async def test_every_option(self, job: Any, service: str) -> None:
        outcome = expect(
            Succeeded,
            await job.generate(
                [1],
                model=service,
                action_id="a",
                label="edit",
                task="task-1",
                demand=Demand(cpu=Elastic(1, 2, amdahl_fraction=0.9)),
                timeouts=Timeouts(start_to_close_s=10),
                retry=Retry(max_attempts=2),
                weight=2.0,
                unservable=Unservable.WAIT,
                expected_duration_s=0.01,
            ),
        )
        assert outcome.action_id == "a"

    async def test_an_action_submitted_again_attaches(self, job: Any, service: str) -> None:
        first = await job.generate([1], model=service, action_id="a")
        assert await job.generate([1], model=service, action_id="a") == first
        with pytest.raises(AlreadyExistsError):
            await job.generate([2], model=service, action_id="a")

    async def test_a_handle(self, job: Any, service: str) -> None:
        async with job.trajectory("t") as trajectory:
            (await trajectory.env_reset()).unwrap()
            handle = await trajectory.submit(EnvStep("ls", stream_output=True), action_id="a")
            await handle.accepted()
            assert (handle.job_id, handle.action_id) == (job.job_id, "a")
            printed = b"".join([chunk.content async for chunk in handle.output()])
            outcome = expect(Succeeded, await handle)
            assert printed == outcome.value.stdout
            assert await handle.outcome() == outcome
            assert handle.done
            await handle.cancel("too late")
            assert await handle.outcome() == outcome

    async def test_a_handle_cancels_its_action(self, job: Any, service: str) -> None:
        handle = await job.submit(Generate(ENDLESS_PROMPT, model=service), **_ENDLESS)
        assert not handle.done
        await handle.cancel("enough")
        assert "enough" in expect(Cancelled, await handle).reason

    async def test_closing_a_trajectory_cancels_its_actions(self, job: Any, service: str) -> None:
        async with job.trajectory("t") as trajectory:
            handle = await trajectory.submit(Generate(ENDLESS_PROMPT, model=service), **_ENDLESS)
        assert isinstance(await handle, Cancelled)

    async def test_a_quorum_cancels_the_others(self, job: Any, service: str) -> None:
        group = job.group("g", size=2, quorum=1)
        async with group.trajectory("slow") as slow:
            handle = await slow.submit(Generate(ENDLESS_PROMPT, model=service), **_ENDLESS)
            await handle.accepted()
            async with group.trajectory("fast"):
                pass
            assert isinstance(await handle, Cancelled)
        assert slow.end is TrajectoryEnd.ABANDONED

    async def test_a_closed_job_forgets(self, client: Any, service: str) -> None:
        job = await client.open_job(f"job-{uuid.uuid4().hex}")
        handle = await job.submit(Generate(ENDLESS_PROMPT, model=service), **_ENDLESS)
        await handle.accepted()
        await job.close()
        assert isinstance(await handle, Cancelled)
        with pytest.raises(NotFoundError):
            await job.generate([1], model=service)

    async def test_a_fresh_sandbox_needs_something_in_it(self, job: Any, service: str) -> None:
        for verb, name in (job.reward_tests, "test_suite"), (job.reward_script, "script"):
            with pytest.raises(InvalidArgumentError) as caught:
                await verb("score {score}", service=service)
            assert caught.value.field == f"reward.{name}.files"
        with pytest.raises(InvalidArgumentError) as caught:
            await job.reward_tests("score", where=Where.IN_SANDBOX, service=service)
        assert caught.value.field == "trajectory_id"

    async def test_bad_input_names_field_and_rule(self, job: Any, service: str) -> None:
        for given, field in ({"weight": "2"}, "weight"), ({"lable": "x"}, "lable"), ({"timeouts": 5}, "timeouts"):
            with pytest.raises(InvalidArgumentError) as caught:
                await job.generate([1], model=service, **given)
            assert caught.value.field == field
            assert caught.value.rule

    async def test_a_group_of_rollouts(self, job: Any, service: str) -> None:
        async def rollout(trajectory: Any) -> int:
            (await trajectory.env_reset()).unwrap()
            exit_code: int = (await trajectory.env_step("ls")).unwrap().exit_code
            return exit_code

        async with job.group("g", size=3) as group:
            group.start(rollout)
            done = [member async for member in group]
        assert [(member.end, member.value, member.error) for member in done] == [(TrajectoryEnd.COMPLETED, 0, None)] * 3
        assert group.has_quorum

    async def test_a_member_refused_since_its_group_has_its_quorum_is_no_mistake(self, job: Any, service: str) -> None:
        async def rollout(trajectory: Any) -> None:
            if trajectory.trajectory_id == "g/0":
                await trajectory.generate(ENDLESS_PROMPT, model=service, **_ENDLESS)
                await trajectory.generate([1], model=service)

        async with job.group("g", size=2, quorum=1) as group:
            group.start(rollout)
            assert [member.trajectory_id async for member in group] == ["g/1"]
        assert group.has_quorum


def _check_all(job: Any, outcomes: list[Any]) -> None:
    for outcome in outcomes:
        assert isinstance(outcome, Succeeded), outcome
        assert (outcome.job_id, outcome.attempts) == (job.job_id, 1)
        assert outcome.manager_id
    assert len({outcome.action_id for outcome in outcomes}) == len(outcomes)


@pytest.fixture(scope="module")
async def address(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    settings = StackSettings(tmp_path_factory.mktemp("scheduler"), managers=(Role.NOOP,))
    async with local_stack(settings) as stack:
        yield stack.address


@pytest.fixture
def service() -> str:
    return "noop"


class TestScheduler(VerbSuite):
    @pytest.fixture(params=["async", "sync"])
    async def client(self, request: pytest.FixtureRequest, address: str) -> AsyncIterator[Any]:
        made: Any = Client(address) if request.param == "async" else Threaded(SyncClient(address))
        async with made as client:
            yield client


class TestFake(VerbSuite):
    @pytest.fixture(params=["async", "sync"])
    async def client(self, request: pytest.FixtureRequest) -> AsyncIterator[Any]:
        fake = _scripted()
        async with fake if request.param == "async" else Threaded(SyncClient(fake)) as client:
            yield client


def _scripted() -> FakeClient:
    def ended(value: Any) -> Any:
        return lambda action: Succeeded(value, attempts=1, manager_id="fake")

    async def generate(action: Generate) -> Outcome[GenerateResult]:
        if list(action.prompt_token_ids) == ENDLESS_PROMPT:
            await anyio.sleep_forever()
        return Succeeded(GenerateResult((1,), (0.0,)), attempts=1, manager_id="fake")

    fake = FakeClient()
    fake.on_generate(generate)
    fake.on_env_reset(ended(EnvResetResult("sandbox")))
    fake.on_env_step(ended(CommandResult(0, b"out")))
    fake.on_tool_call(ended(ToolCallResult(b"response")))
    for on_reward in (
        fake.on_reward_tests,
        fake.on_reward_script,
        fake.on_reward_model,
        fake.on_teacher_log_probs,
        fake.on_judge,
    ):
        on_reward(ended(RewardResult(1.0)))
    return fake
