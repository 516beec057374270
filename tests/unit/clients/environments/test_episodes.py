"""Episodes, batches and the token policy, over a client in memory."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
from callsheet.client import (
    BadTextError,
    Cancelled,
    CommandResult,
    EnvResetResult,
    EnvStep,
    Expired,
    Failed,
    FailureKind,
    FinishReason,
    GatewayAccess,
    Generate,
    GenerateResult,
    InvalidArgumentError,
    Job,
    Outcome,
    PolicyVersionSpan,
    Reason,
    RewardResult,
    Sampling,
    Succeeded,
    Timeline,
    TimeoutKind,
    Trajectory,
    TrajectoryEnd,
)
from callsheet.client.testing import FakeClient
from callsheet.environments import (
    BatchSettings,
    Beginning,
    EpisodeEnd,
    EpisodeScore,
    EpisodeTask,
    Message,
    Observation,
    TimeLimit,
    TokenPolicy,
    roll_out,
    run_batch,
    run_episode,
)
from callsheet.gateway.chat import BadRequestError
from callsheet.gateway.renderers.byte_renderer import ByteRenderer
from callsheet.v1.names import END_OF_TURN_TOKEN

from tests.support.word_environment import SayingPolicy, WordEnvironment, WordTasks

_TASK = WordTasks().tasks()[0]
_LOST: Failed[CommandResult] = Failed(FailureKind.INFRA, Reason.MANAGER_LOST, "node-1 is gone")


@pytest.fixture
def fake() -> FakeClient:
    fake = FakeClient()
    waited = Timeline(queue_s=1000.0)
    fake.on_env_reset(lambda _: Succeeded(EnvResetResult("s"), timeline=waited))
    fake.on_env_step(lambda _: Succeeded(CommandResult(0, stdout=b"2\n")))
    fake.on_reward_tests(lambda _: Succeeded(RewardResult(1.0, passed=1, total=1)))
    return fake


@pytest.fixture
async def job(fake: FakeClient) -> Job:
    return await fake.open_job("job")


def _engine(*replies: str | GenerateResult) -> Callable[[Generate], Outcome[GenerateResult]]:
    """An engine that says these; versions count its generations."""
    numbered = itertools.count()
    left = iter(replies)

    def generate(action: Generate) -> Outcome[GenerateResult]:
        said = next(left)
        if isinstance(said, GenerateResult):
            return Succeeded(said)
        tokens = (*said.encode(), END_OF_TURN_TOKEN)
        spans = (PolicyVersionSpan(next(numbered), 0, len(tokens)),)
        return Succeeded(GenerateResult(tokens, tuple(-0.5 for _ in tokens), policy_versions=spans))

    return generate


async def test_an_episode_is_scored_and_its_trajectory_completed(fake: FakeClient, job: Job) -> None:
    record = await roll_out(job, "t", WordEnvironment("w0", 2), _TASK, SayingPolicy())
    assert (record.end, record.score, record.failure) == (EpisodeEnd.DONE, EpisodeScore(1.0, {"letters": 2.0}), None)
    assert record.turns == 2
    assert [each["role"] for each in record.messages] == ["user", "assistant", "user", "assistant", "user"]
    assert fake.closed_trajectories == {("job", "t"): TrajectoryEnd.COMPLETED}


async def test_time_in_queues_is_told_apart(job: Job) -> None:
    record = await roll_out(job, "t", WordEnvironment("w0", 1), _TASK, SayingPolicy())
    # The reset waited, by its outcome, for longer than the block took.
    assert record.seconds.waiting > 0.0
    assert record.seconds.total < 1000.0


async def test_time_in_queues_is_added_after_each_action(
    fake: FakeClient, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reward(_: WordEnvironment, trajectory: Trajectory) -> EpisodeScore:
        (await trajectory.env_step("true")).unwrap()
        return EpisodeScore(anyio.current_effective_deadline() - anyio.current_time())

    monkeypatch.setattr(WordEnvironment, "reward", reward)
    fake.on_env_step(lambda _: Succeeded(CommandResult(0), timeline=Timeline(queue_s=1000.0)))
    async with job.trajectory("t") as trajectory:
        trajectory.observer = observer = Mock()
        # The time of a test is none of an episode's.
        with anyio.CancelScope(shield=True):
            record = await run_episode(trajectory, WordEnvironment("w0", 1), _TASK, SayingPolicy(), limit=TimeLimit(5))
    # Its step waited, and so did the one action of its reward.
    assert 2000.0 < getattr(record.score, "value", 0.0) < 2005.0
    assert (trajectory.observer, observer.call_count) == (observer, len(fake.submitted))


async def test_tokens_of_all_turns_are_one_sample(fake: FakeClient, job: Job) -> None:
    prompts: list[tuple[int, ...]] = []
    engine = _engine("hello", "w0")

    def generate(action: Generate) -> Outcome[GenerateResult]:
        prompts.append(tuple(action.prompt_token_ids))
        return engine(action)

    fake.on_generate(generate)
    policy = TokenPolicy(ByteRenderer(), Sampling(max_new_tokens=64, seed=7))
    record = await roll_out(job, "t", WordEnvironment("w0", 2), _TASK, policy)
    (sample,) = record.samples
    assert sample.token_ids[: len(prompts[1])] == prompts[1]
    assert prompts[1][: len(prompts[0])] == prompts[0]
    sampled = bytes(
        token for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask and token < 256
    )
    assert sampled == b"hellow0"
    assert {version for version, mask in zip(sample.versions, sample.loss_mask, strict=True) if mask} == {0, 1}
    generates = [each.action for each in fake.submitted if isinstance(each.action, Generate)]
    assert [each.sampling.seed for each in generates] == [7, 8]
    assert all(END_OF_TURN_TOKEN in each.sampling.stop_token_ids for each in generates)


async def test_a_reply_goes_on_after_an_update_of_weights(fake: FakeClient, job: Job) -> None:
    cut = GenerateResult((119,), (-1.0,), FinishReason.ABORT, (PolicyVersionSpan(4, 0, 1),))
    rest = GenerateResult((48, END_OF_TURN_TOKEN), (-2.0, -3.0), FinishReason.STOP, (PolicyVersionSpan(5, 0, 2),))
    fake.on_generate(_engine(cut, rest))
    record = await roll_out(job, "t", WordEnvironment("w0", 1), _TASK, TokenPolicy(ByteRenderer()))
    (sample,) = record.samples
    assert record.messages[1]["content"] == "w0"
    assert (sample.versions[-3:], sample.log_probs[-3:]) == ((4, 5, 5), (-1.0, -2.0, -3.0))


@pytest.mark.parametrize("room", [0, 3])
async def test_an_episode_without_room_for_tokens_is_scored_as_it_stands(fake: FakeClient, job: Job, room: int) -> None:
    fake.on_generate(lambda action: Succeeded(_of_length(action.sampling.max_new_tokens)))
    prompt = len(ByteRenderer().render([{"role": "user", "content": "Say w0."}], (), {}))
    policy = TokenPolicy(ByteRenderer(), max_total_tokens=prompt + room)
    record = await roll_out(job, "t", WordEnvironment("w0", 1), _TASK, policy)
    assert (record.end, record.score is not None) == (EpisodeEnd.MAX_TOKENS, True)
    assert sum(sum(sample.loss_mask) for sample in record.samples) == room


@pytest.mark.parametrize("bounds", [{}, {"max_total_tokens": 4096}, {"max_completion_tokens": 32}])
async def test_a_cut_reply_is_the_last_one_and_never_carried_out(
    fake: FakeClient, job: Job, bounds: dict[str, Any]
) -> None:
    """Whether the reply itself is bounded, as in an evaluation, or the completion, as by a trainer."""
    fake.on_generate(lambda action: Succeeded(_of_length(action.sampling.max_new_tokens)))
    policy = TokenPolicy(ByteRenderer(), Sampling(max_new_tokens=32), **bounds)
    record = await roll_out(job, "t", WordEnvironment("w0", 9), _TASK, policy)
    assert (record.end, record.turns, record.cut_replies) == (EpisodeEnd.MAX_TOKENS, 1, 1)
    assert record.score is not None
    assert record.messages[-1] == {"role": "assistant", "content": "x" * 32}
    assert sum(sum(sample.loss_mask) for sample in record.samples) == 32
    assert not any(isinstance(each.action, EnvStep) for each in fake.submitted)


async def test_a_reply_that_updates_cut_again_and_again_is_the_services_failure(fake: FakeClient, job: Job) -> None:
    fake.on_generate(lambda _: Succeeded(GenerateResult((119,), (-1.0,), FinishReason.ABORT)))
    record = await roll_out(job, "t", WordEnvironment("w0", 1), _TASK, TokenPolicy(ByteRenderer()))
    assert (record.cut_replies, record.score, str(record.failure)[:5]) == (0, None, "INFRA")


def _of_length(count: int) -> GenerateResult:
    return GenerateResult((120,) * count, (-0.1,) * count, FinishReason.LENGTH)


async def test_an_episode_ends_with_its_last_turn(job: Job) -> None:
    record = await roll_out(job, "t", WordEnvironment("w0", 9), _TASK, SayingPolicy(), max_turns=3)
    assert (record.end, record.turns, record.score is not None) == (EpisodeEnd.MAX_TURNS, 3, True)


@pytest.mark.parametrize(
    ("outcome", "name", "end"),
    [
        (_LOST, "INFRA manager_lost: node-1 is gone", TrajectoryEnd.LOST),
        (Failed(FailureKind.ENV, Reason.SET_UP_FAILED), "ENV set_up_failed", TrajectoryEnd.ABANDONED),
        (
            Expired(timeout=TimeoutKind.SCHEDULE_TO_START),
            "INFRA schedule_to_start: it ran out before the action could finish",
            TrajectoryEnd.LOST,
        ),
        (Cancelled(reason="too stale"), "CANCELLED cancelled: too stale", TrajectoryEnd.ABANDONED),
    ],
)
async def test_an_outcome_that_is_no_success_is_a_failure_of_the_episode(
    fake: FakeClient,
    job: Job,
    outcome: Outcome[CommandResult],
    name: str,
    end: TrajectoryEnd,
) -> None:
    fake.on_env_step(lambda _: outcome)
    record = await roll_out(job, "t", WordEnvironment("w0", 1), _TASK, SayingPolicy())
    assert (record.end, record.score, str(record.failure)) == (EpisodeEnd.FAILED, None, name)
    assert fake.closed_trajectories == {("job", "t"): end}


class _MistakenEnvironment(WordEnvironment):
    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        raise KeyError("word")


async def test_a_mistake_is_raised(fake: FakeClient, job: Job) -> None:
    with pytest.raises(KeyError):
        await roll_out(job, "t", _MistakenEnvironment("w0", 1), _TASK, SayingPolicy())
    assert fake.closed_trajectories == {("job", "t"): TrajectoryEnd.ABANDONED}


async def test_a_refused_action_is_a_mistake(fake: FakeClient, job: Job) -> None:
    class Asking(WordEnvironment):
        async def reset(self, trajectory: Trajectory) -> Beginning:
            (await trajectory.env_reset(disk_mib=-1)).unwrap()
            return await super().reset(trajectory)

    with pytest.raises(InvalidArgumentError):
        await roll_out(job, "t", Asking("w0", 1), _TASK, SayingPolicy())


class _Says:
    """Replies with one message."""

    def __init__(self, reply: Any) -> None:
        self._reply = reply

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[object]) -> Message:
        del trajectory, messages, tools
        said: Message = self._reply
        return said

    async def samples(self, trajectory: Trajectory) -> tuple[()]:
        del trajectory
        return ()


def _said(text: str) -> _Says:
    return _Says({"role": "assistant", "content": text})


_ODD = {
    "nul": "a\0b",
    "half a pair": "\ud83d",
    "megabytes": "x" * 2_000_000,
}


@pytest.mark.parametrize("text", _ODD.values(), ids=_ODD.keys())
async def test_what_no_command_can_be_given_is_the_policys_failure(job: Job, text: str) -> None:
    record = await roll_out(job, "t", WordEnvironment("w0", 1), _TASK, _said(text))
    assert str(record.failure).startswith("POLICY bad_command")
    assert "env_step.command.shell" in str(record.failure)


class _Own(WordEnvironment):
    """Runs a command of its own that none can be given, in its reset or in its step."""

    def __init__(self, place: str) -> None:
        super().__init__("w0", 1)
        self._place = place

    async def reset(self, trajectory: Trajectory) -> Beginning:
        if self._place == "reset":
            await trajectory.env_step("mkdir \0")
        return await super().reset(trajectory)

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        (await trajectory.env_step("mkdir \0" if self._place == "step" else str(reply["content"]))).unwrap()
        return Observation(done=True)


@pytest.mark.parametrize("place", ["reset", "step"])
async def test_a_bad_text_of_the_environments_own_is_its_mistake(job: Job, place: str) -> None:
    with pytest.raises(BadTextError, match="NUL") as raised:
        await roll_out(job, "t", _Own(place), _TASK, _said("a reply without one"))
    assert f"{place}, task 'word-0'" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    "reply",
    [
        {"role": "assistant", "content": "\0"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "x", "arguments": '{"a": "\\u0000"}'}}]},
    ],
)
async def test_a_bad_text_of_which_a_reply_has_a_sign_is_the_policys(job: Job, reply: Message) -> None:
    record = await roll_out(job, "t", _Own("step"), _TASK, _Says(reply))
    assert str(record.failure).startswith("POLICY bad_command")


class _Relaying(WordEnvironment):
    """Gives the output of one command to the next one."""

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        printed = (await trajectory.env_step(str(reply["content"]))).unwrap().stdout.decode()
        (await trajectory.env_step(["echo", printed])).unwrap()
        return Observation(done=True)


async def test_a_bad_text_that_a_command_printed_is_the_policys(fake: FakeClient, job: Job) -> None:
    fake.on_env_step(lambda _: Succeeded(CommandResult(0, stdout=b"a\0b")))
    record = await roll_out(job, "t", _Relaying("w0", 1), _TASK, _said("cat core"))
    assert str(record.failure).startswith("POLICY bad_command")


async def test_a_reply_that_is_no_message_is_its_policys_mistake(job: Job) -> None:
    with pytest.raises(TypeError, match="must be a message") as raised:
        await roll_out(job, "t", WordEnvironment("w0", 1), _TASK, _Says("w0"))
    assert "_Says.reply" in raised.value.__notes__[0]


class _Refusing(_Says):
    """Its template refuses the conversation at the second reply."""

    def __init__(self, field: str) -> None:
        super().__init__({"role": "assistant", "content": "w0"})
        self._field, self._replies = field, 0

    async def reply(self, trajectory: Trajectory, messages: Sequence[Message], tools: Sequence[object]) -> Message:
        self._replies += 1
        if self._replies == 2:
            raise BadRequestError(self._field, "x", "something else")
        return await super().reply(trajectory, messages, tools)


@pytest.mark.parametrize("field", ["messages", "messages[1].content"])
async def test_a_conversation_that_the_template_refuses_after_a_reply_is_the_policys(job: Job, field: str) -> None:
    record = await roll_out(job, "t", WordEnvironment("w0", 2), _TASK, _Refusing(field))
    assert str(record.failure).startswith("POLICY bad_messages")


async def test_a_message_of_the_environment_that_the_template_refuses_is_its_mistake(job: Job) -> None:
    with pytest.raises(BadRequestError):
        await roll_out(job, "t", WordEnvironment("w0", 2), _TASK, _Refusing("messages[2].role"))


async def test_an_environment_needs_a_policy(job: Job) -> None:
    async with job.trajectory("t") as trajectory:
        with pytest.raises(ValueError, match="WordEnvironment"):
            await run_episode(trajectory, WordEnvironment("w0", 1), _TASK)


async def test_an_environment_that_goes_on_says_something(job: Job) -> None:
    class Silent(WordEnvironment):
        async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
            return Observation()

    async with job.trajectory("t") as trajectory:
        with pytest.raises(ValueError, match="Silent"):
            await run_episode(trajectory, Silent("w0", 1), _TASK, SayingPolicy())


class _BlackBox:
    """An environment whose agent would speak to a gateway."""

    async def reset(self, trajectory: Trajectory) -> None:
        (await trajectory.env_reset()).unwrap()

    async def run(self, trajectory: Trajectory, access: GatewayAccess) -> None:
        raise AssertionError("there is no gateway")

    async def reward(self, trajectory: Trajectory) -> EpisodeScore:
        return EpisodeScore(1.0)


async def test_a_missing_gateway_is_a_failure_of_the_service() -> None:
    fake = FakeClient()
    fake.on_env_reset(lambda _: Succeeded(EnvResetResult("s")))
    fake.options = type(fake.options)(gateway="http://127.0.0.1:9")
    record = await roll_out(await fake.open_job("job"), "t", _BlackBox(), _TASK)
    assert str(record.failure).startswith("INFRA connection_lost")


def _losing(*trajectories: str) -> Callable[[EnvStep], Outcome[CommandResult]]:
    """Loses so many first steps."""
    left = list(trajectories)

    def step(_: EnvStep) -> Outcome[CommandResult]:
        return _LOST if left and left.pop() else Succeeded(CommandResult(0, stdout=b"2"))

    return step


async def test_a_batch_has_its_siblings_in_the_order_of_tasks(job: Job) -> None:
    tasks = WordTasks(count=3).tasks()
    settings = BatchSettings(group_size=2)
    records = await run_batch(job, WordTasks(), tasks, lambda _: SayingPolicy(), settings=settings)
    assert [record.task.task_id for record in records] == ["word-0", "word-0", "word-1", "word-1", "word-2", "word-2"]
    assert all(record.score is not None for record in records)
    assert len({record.trajectory_id for record in records}) == 6


async def test_what_the_service_lost_is_replaced(fake: FakeClient, job: Job) -> None:
    fake.on_env_step(_losing("one", "two"))
    records = await run_batch(job, WordTasks(), [_TASK], lambda _: SayingPolicy(), settings=BatchSettings(group_size=3))
    assert [record.score is not None for record in records] == [True] * 3
    assert sorted(end.name for end in fake.closed_trajectories.values()) == ["COMPLETED"] * 3 + ["LOST"] * 2


async def test_a_spent_budget_leaves_a_named_failure(fake: FakeClient, job: Job) -> None:
    fake.on_env_step(lambda _: _LOST)
    settings = BatchSettings(group_size=2, max_replacements=1)
    records = await run_batch(job, WordTasks(), [_TASK], lambda _: SayingPolicy(), settings=settings)
    assert [str(record.failure).partition(":")[0] for record in records] == ["INFRA manager_lost"] * 2


async def test_a_failure_of_the_task_is_not_replaced(fake: FakeClient, job: Job) -> None:
    fake.on_env_step(lambda _: Failed(FailureKind.TIMEOUT, Reason.START_TO_CLOSE))
    records = await run_batch(job, WordTasks(), [_TASK], lambda _: SayingPolicy())
    assert [str(record.failure).partition(":")[0] for record in records] == ["TIMEOUT start_to_close"]
    assert len(fake.closed_trajectories) == 1


async def test_a_quorum_makes_the_others_redundant(fake: FakeClient, job: Job) -> None:
    settings = BatchSettings(group_size=3, quorum=1)
    records = await run_batch(job, WordTasks(), [_TASK], lambda _: SayingPolicy(), settings=settings)
    kinds = [record.failure and record.failure.kind for record in records]
    assert (len(kinds), set(kinds) - {None}) == (3, {FailureKind.CANCELLED})
    assert any(record.score is not None for record in records)


async def test_a_batch_raises_a_mistake_as_it_is(job: Job) -> None:
    class Mistaken(WordTasks):
        def environment(self, task: EpisodeTask) -> WordEnvironment:
            return _MistakenEnvironment("w", 1)

    with pytest.raises(KeyError):
        await run_batch(job, Mistaken(), Mistaken().tasks(), lambda _: SayingPolicy())


def test_tasks_and_task_sets_pickle() -> None:
    tasks: Sequence[EpisodeTask] = WordTasks().tasks()
    assert pickle.loads(pickle.dumps(tasks)) == tasks
    assert pickle.loads(pickle.dumps(WordTasks(count=4))) == WordTasks(count=4)
