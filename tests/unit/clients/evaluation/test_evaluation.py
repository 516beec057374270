"""Evaluations over a client in memory: one result for each trial, retries, resuming, figures."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, Mock

import anyio
import pytest
from callsheet.cli import eval_command
from callsheet.cli.output import describe
from callsheet.client import (
    Client,
    ClientOptions,
    Command,
    CommandResult,
    EnvResetResult,
    EnvStep,
    Failed,
    FailedPreconditionError,
    FailureKind,
    Outcome,
    Reason,
    RewardResult,
    Succeeded,
    Trajectory,
)
from callsheet.client.errors import unfit
from callsheet.client.testing import FakeClient
from callsheet.environments import (
    EpisodeScore,
    EpisodeTask,
    Message,
    Observation,
)
from callsheet.environments.sandbox_environment import SandboxEnvironment, SandboxWorld
from callsheet.evaluation.results import (
    ResultsFileError,
    TrialResult,
    read_results,
    summarise,
)
from callsheet.evaluation.run import (
    CommandAgent,
    Evaluation,
    EvaluationError,
    with_agent,
)
from callsheet.evaluation.settings import EvaluationSettings
from numpy import float32

from tests.support.command_line import invoke
from tests.support.word_environment import SayingPolicy, WordEnvironment, WordTasks

_WORDS = "tests.support.word_environment:WordTasks"
_SAYING = f"{__name__}:saying"
_LOST: Failed[CommandResult] = Failed(FailureKind.INFRA, Reason.MANAGER_LOST, "node-1 is gone")


def saying(task: EpisodeTask) -> SayingPolicy:
    """The policy that `--policy` names."""
    del task
    return SayingPolicy()


def _settings(**changes: Any) -> EvaluationSettings:
    return EvaluationSettings(policy=_SAYING, retry_pause_s=0.0, **changes)


@pytest.fixture
def fake() -> FakeClient:
    fake = FakeClient()
    fake.on_env_reset(lambda _: Succeeded(EnvResetResult("s")))
    fake.on_env_step(lambda _: Succeeded(CommandResult(0, stdout=b"2\n")))
    fake.on_reward_tests(lambda _: Succeeded(RewardResult(0.5, passed=1, total=2)))
    return fake


@pytest.fixture
def connected(fake: FakeClient, monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    """Is the client of the command line too."""
    monkeypatch.setattr(Client, "connect", AsyncMock(return_value=fake))
    return fake


def _refusing(turn: int, field: str, value: str = "") -> Callable[[object], Outcome[EnvResetResult]]:
    """Finds no manager for one reset, counted from 0, and makes the sandboxes of the others."""
    turns = itertools.count()

    def reset(_: object) -> Outcome[EnvResetResult]:
        if next(turns) == turn:
            raise unfit(field, value, "no registered manager serves env_reset")
        return Succeeded(EnvResetResult("s"))

    return reset


def _result(task: str, trial: int = 0, **fields: Any) -> TrialResult:
    given: dict[str, Any] = {"environment": "words", "status": "scored", "score": 1.0}
    return TrialResult(task=task, trial=trial, **(given | fields))


async def test_each_trial_has_one_result_and_a_second_run_has_none_to_add(fake: FakeClient, tmp_path: Path) -> None:
    settings = _settings(task_options=("count=3",), trials=2, results=tmp_path / "results.jsonl")
    first = await Evaluation(_WORDS, settings).run(fake)
    assert {each.key for each in first} == {(f"word-{task}", trial) for task in range(3) for trial in range(2)}
    assert all(each.status == "scored" and each.score == 0.5 for each in first)
    submitted = len(fake.submitted)
    again = await Evaluation(_WORDS, settings).run(fake)
    assert {each.key for each in again} == {each.key for each in first}
    assert len(fake.submitted) == submitted
    more = await Evaluation(_WORDS, _settings(task_options=("count=3",), trials=3, results=settings.results)).run(fake)
    assert len(more) == 9
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 9


async def test_results_of_a_task_that_has_changed_are_refused(
    fake: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["a", "b"]
    monkeypatch.setattr(WordTasks, "tasks", lambda _: [EpisodeTask(f"t{n}", {"word": w}) for n, w in enumerate(words)])
    settings = _settings(results=tmp_path / "results.jsonl")
    await Evaluation(_WORDS, settings).run(fake)
    words.append("c")
    assert len(await Evaluation(_WORDS, settings).run(fake)) == 3
    del words[0]
    with pytest.raises(ResultsFileError, match=r"task 't[01]' has changed since: take another file"):
        await Evaluation(_WORDS, settings).run(fake)


async def test_no_more_trajectories_run_at_once_than_were_asked_for(fake: FakeClient) -> None:
    told: list[tuple[int, int]] = []
    settings = _settings(task_options=("count=5",), concurrency=2)
    await Evaluation(_WORDS, settings).run(fake, lambda _, done, in_all: told.append((done, in_all)))
    assert told == [(done, 5) for done in range(1, 6)]


def _losing(times: int) -> Callable[[EnvStep], Outcome[CommandResult]]:
    left = iter(range(times))
    return lambda _: _LOST if next(left, None) is not None else Succeeded(CommandResult(0, stdout=b"2"))


async def test_what_the_service_lost_is_followed_by_another_trajectory(fake: FakeClient) -> None:
    fake.on_env_step(_losing(2))
    (result,) = await Evaluation(_WORDS, _settings(tasks=1)).run(fake)
    assert (result.status, result.score, result.trajectory) == ("scored", 0.5, "word-0/0/2")
    assert result.lost == ("INFRA manager_lost: node-1 is gone",) * 2


async def test_what_stays_lost_is_a_named_failure_and_no_score(fake: FakeClient) -> None:
    fake.on_env_step(lambda _: _LOST)
    (result,) = await Evaluation(_WORDS, _settings(tasks=1, infra_retries=1)).run(fake)
    assert (result.status, result.score) == ("infra", None)
    assert result.failure == {"kind": "INFRA", "reason": "manager_lost", "message": "node-1 is gone"}
    summary = summarise("words", [result, _result("word-1")], 1.0)
    assert (summary.mean_score, summary.excluded, summary.failures) == (1.0, 1, {"INFRA/manager_lost": 1})


async def test_a_failure_of_the_task_counts_as_nothing_scored(fake: FakeClient) -> None:
    fake.on_env_step(lambda _: Failed(FailureKind.TIMEOUT, Reason.START_TO_CLOSE))
    (result,) = await Evaluation(_WORDS, _settings(tasks=1)).run(fake)
    assert (result.status, result.score, result.lost) == ("failed", None, ())
    summary = summarise("words", [result, _result("word-1")], 1.0)
    assert (summary.mean_score, summary.pass_share, summary.failed) == (0.5, 0.5, 1)


_SET_UP: Failed[EnvResetResult] = Failed(FailureKind.ENV, Reason.SET_UP_FAILED, "no such tool")


@pytest.mark.parametrize(
    "failed",
    [
        _SET_UP,
        Failed(FailureKind.ENV, Reason.NETWORK_REFUSED, "not a.example:443"),
        Failed(FailureKind.ENV, Reason.NO_SUCH_PROGRAM, "no set-up there"),
        Failed(FailureKind.TIMEOUT, Reason.START_TO_CLOSE, "the set-up ran out of time"),
        Failed(FailureKind.RESOURCE_LIMIT, Reason.OUT_OF_MEMORY, "the set-up took it all"),
    ],
    ids=lambda failed: failed.reason,
)
async def test_a_reset_that_fails_says_nothing_of_the_model(fake: FakeClient, failed: Failed[EnvResetResult]) -> None:
    fake.on_env_reset(lambda _: failed)
    (result,) = await Evaluation(_WORDS, _settings(tasks=1)).run(fake)
    assert (result.status, result.is_excluded) == (failed.kind.value, True)
    summary = summarise("words", [result, _result("word-1")], 1.0)
    assert (summary.mean_score, summary.failed, summary.excluded) == (1.0, 0, 1)


@pytest.mark.parametrize(
    ("kind", "reason", "status"),
    [
        (FailureKind.ENV, Reason.SCORE_MISSING, "env"),
        (FailureKind.ENV, Reason.RUNNER_MISSING, "env"),
        (FailureKind.ENV, Reason.NO_REPORT, "env"),
        (FailureKind.POLICY, Reason.SCORE_MISSING, "failed"),
        (FailureKind.TIMEOUT, Reason.START_TO_CLOSE, "failed"),
        (FailureKind.RESOURCE_LIMIT, Reason.OUT_OF_MEMORY, "failed"),
        # The sandbox died under a command of the policy.
        (FailureKind.ENV, Reason.STATE_LOST, "failed"),
        (FailureKind.ENV, Reason.COPY_LOST, "failed"),
    ],
)
async def test_a_judge_that_cannot_judge_says_nothing_of_the_model(
    fake: FakeClient, kind: FailureKind, reason: Reason, status: str
) -> None:
    judged: Failed[RewardResult] = Failed(kind, reason)
    fake.on_reward_tests(lambda _: judged)
    (result,) = await Evaluation(_WORDS, _settings(tasks=1)).run(fake)
    assert result.status == status


@pytest.mark.parametrize(
    ("failed", "status"),
    [
        (Failed(FailureKind.ENV, Reason.STATE_LOST), "failed"),
        (Failed(FailureKind.ENV, Reason.BAD_WORKING_DIRECTORY), "failed"),
        (Failed(FailureKind.POLICY, Reason.BAD_COMMAND), "failed"),
        (_SET_UP, "env"),
    ],
)
async def test_a_step_that_fails_is_the_models_unless_it_resets(
    fake: FakeClient, failed: Failed[CommandResult], status: str
) -> None:
    fake.on_env_step(lambda _: failed)
    (result,) = await Evaluation(_WORDS, _settings(tasks=1)).run(fake)
    assert result.status == status


@pytest.mark.parametrize(
    ("judged", "exit_code", "mean"),
    [
        (Succeeded(RewardResult(0.5)), 0, 0.5),
        (Failed(FailureKind.POLICY, Reason.SCORE_MISSING), 0, 0.0),
        (Failed(FailureKind.ENV, Reason.SCORE_MISSING), 3, None),
    ],
)
def test_the_exit_code_tells_of_what_no_mean_counts(
    connected: FakeClient, judged: Outcome[RewardResult], exit_code: int, mean: float | None
) -> None:
    connected.on_reward_tests(lambda _: judged)
    told = invoke("eval", _WORDS, "--policy", _SAYING, "--tasks", "1", "--json")
    assert (told.exit_code, json.loads(told.stdout)["mean_score"]) == (exit_code, mean)


class _Waiting(WordEnvironment):
    """Answers the first reply, and waits for ever after the second."""

    async def step(self, trajectory: Trajectory, reply: Message) -> Observation:
        if self._left == 1:
            await anyio.sleep_forever()
        return await super().step(trajectory, reply)


class WaitingTasks(WordTasks):
    """Words whose second turn has no end."""

    def environment(self, task: EpisodeTask) -> WordEnvironment:
        return _Waiting(task.data["word"], 2)


@pytest.mark.parametrize(
    ("truncate", "said"), [(False, ("failed", None, "failed")), (True, ("scored", 0.5, "timeout"))]
)
async def test_an_episode_whose_time_is_over_is_a_zero_or_truncated(
    fake: FakeClient, tmp_path: Path, truncate: bool, said: tuple[str, float | None, str]
) -> None:
    file = tmp_path / "results.jsonl"
    settings = _settings(tasks=1, deadline=1.0, truncate=truncate, results=file)
    (result,) = await Evaluation(f"{__name__}:WaitingTasks", settings).run(fake)
    assert (result.status, result.score, result.end) == said
    assert (result.failure or {}).get("reason", "time_limit") == "time_limit"
    # What was said so far is kept, and in the file alone.
    assert result.messages == ()
    kept = json.loads(file.read_text())["messages"]
    assert [each["role"] for each in kept] == ["user", "assistant", "user", "assistant"]
    assert read_results(file.read_bytes(), "file")[0].messages == ()


@pytest.mark.parametrize("truncate", [False, True])
async def test_the_time_of_an_episode_bounds_its_reward(
    fake: FakeClient, monkeypatch: pytest.MonkeyPatch, truncate: bool
) -> None:
    reward = Mock(side_effect=lambda _: anyio.sleep_forever())
    monkeypatch.setattr(WordEnvironment, "reward", reward)
    (result,) = await Evaluation(_WORDS, _settings(tasks=1, deadline=1.0, truncate=truncate)).run(fake)
    assert (result.status, result.turns) == ("failed", 1)
    assert result.failure == {
        "kind": "TIMEOUT",
        "reason": "time_limit",
        "message": "its 1 seconds were over in its reward",
    }
    # The trajectory lives for as long as both times, besides the reset and queues.
    assert reward.call_args.args[0]._description.deadline_s == (7202.0 if truncate else 7201.0)


def test_time_limits_and_the_last_lines_of_a_zero_are_told(
    connected: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = Command.argv("true")
    world = SandboxWorld("w", "words", ({"content": "Say."},), (), nothing, nothing, ())
    monkeypatch.setattr(WordTasks, "environment", lambda *_: SandboxEnvironment(world))
    printed = CommandResult(1, b"\n".join(b"line %d" % number for number in range(99)), b"Could not resolve host: a\n")
    connected.on_reward_tests(lambda _: Succeeded(RewardResult(0.0, command=printed)))
    file = tmp_path / "results.jsonl"
    told = invoke("eval", _WORDS, "--policy", _SAYING, "--results", str(file), "--tasks", "1")
    limits = "episode with its reward 3600, wait of an action in the queue 900, reset 120, command 120, reward 120"
    assert f"callsheet: seconds at most: {limits}\n" in told.stderr
    said = "".join(f"line {number}\n" for number in range(89, 99)) + "Could not resolve host: a"
    assert f"word-0: score 0, and its tests said last:\n{said}\n" in told.stderr
    assert json.loads(file.read_text())["said"] == said


@pytest.mark.parametrize(("truncate", "status"), [(False, "failed"), (True, "scored")])
async def test_a_command_that_ran_out_of_time_is_a_zero_or_truncates(
    fake: FakeClient, truncate: bool, status: str
) -> None:
    fake.on_env_step(lambda _: Failed(FailureKind.TIMEOUT, Reason.START_TO_CLOSE))
    (result,) = await Evaluation(_WORDS, _settings(tasks=1, truncate=truncate)).run(fake)
    assert (result.status, result.turns) == (status, 1)


async def test_what_can_no_longer_be_served_is_the_services_failure(fake: FakeClient) -> None:
    fake.on_env_reset(_refusing(1, "service"))
    settings = _settings(task_options=("count=2",), concurrency=1, infra_retries=0)
    first, second = await Evaluation(_WORDS, settings).run(fake)
    assert (first.status, second.status, (second.failure or {})["reason"]) == ("scored", "infra", "unservable")


async def test_what_never_could_be_served_ends_the_evaluation(fake: FakeClient) -> None:
    fake.on_env_reset(_refusing(0, "service"))
    with pytest.raises(FailedPreconditionError, match="no registered manager"):
        await Evaluation(_WORDS, _settings(tasks=1)).run(fake)


@pytest.mark.parametrize("field", ["build", "image", "demand.resources[cpu]"])
async def test_what_nobody_has_for_one_task_is_its_own_result(fake: FakeClient, field: str) -> None:
    fake.on_env_reset(_refusing(0, field, "what it asks for"))
    settings = _settings(task_options=("count=3",), concurrency=1, infra_retries=0)
    results = {each.task: each for each in await Evaluation(_WORDS, settings).run(fake)}
    assert {task: each.status for task, each in results.items()} == {
        "word-0": "infra",
        "word-1": "scored",
        "word-2": "scored",
    }
    failure = results["word-0"].failure or {}
    assert (failure["kind"], failure["reason"], field in failure["message"]) == ("INFRA", "unservable", True)


async def test_a_missing_gateway_is_told_before_anything_runs() -> None:
    fake = FakeClient()
    fake.options = ClientOptions(gateway="http://127.0.0.1:9")
    with pytest.raises(EvaluationError, match="callsheet up"):
        await Evaluation(_WORDS, EvaluationSettings()).run(fake)
    assert fake.submitted == []


async def test_an_agent_runs_in_the_sandbox(fake: FakeClient) -> None:
    class Access:
        def environment(self) -> dict[str, str]:
            return {"OPENAI_BASE_URL": "http://g/v1", "OPENAI_API_KEY": "cs-1"}

    agent = with_agent(WordEnvironment("w", 1), EvaluationSettings(agent="solve --fast"))
    assert isinstance(agent, CommandAgent)
    async with (await fake.open_job("job")).trajectory("t") as trajectory:
        await agent.reset(trajectory)
        await agent.run(trajectory, Access())  # type: ignore[arg-type]
        assert await agent.reward(trajectory) == EpisodeScore(0.5, {"letters": 1.0})
    step = next(each.action for each in fake.submitted if isinstance(each.action, EnvStep))
    assert step.command.environment["CALLSHEET_PROMPT"] == "Say w."
    assert step.command.environment["OPENAI_API_KEY"] == "cs-1"
    with pytest.raises(ValueError, match="agent of its own"):
        with_agent(agent, EvaluationSettings(agent="solve"))


def test_a_scheduler_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eval_command, "_CONNECT_S", 0.3)
    told = invoke("eval", _WORDS, "--scheduler", "127.0.0.1:9", "--policy", _SAYING)
    assert told.exit_code == 1
    assert "callsheet up" in told.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(["no-such"], "no-such"), ([_WORDS, "--task-option", "colour=red"], "count, turns")],
)
def test_wrong_use_is_told(arguments: list[str], said: str) -> None:
    told = invoke("eval", *arguments)
    assert (told.exit_code, said in told.stderr) == (2, True)


def test_an_environment_is_found_in_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_me.py").write_text("def tasks():\n    raise ValueError('it was found')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [each for each in sys.path if each])
    ran = invoke("eval", "beside_me:tasks")
    assert ran.exit_code == 2
    assert "it was found" in ran.output


@pytest.mark.parametrize("score", [None, 1.0, EpisodeScore(float("nan")), EpisodeScore(1.0, {"part": float("inf")})])
async def test_what_is_no_score_ends_the_run_by_name(
    score: object, fake: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def reward(*_: object) -> object:
        return score

    monkeypatch.setattr(WordEnvironment, "reward", reward)
    with pytest.raises(ValueError, match=r"WordEnvironment\.reward: .* must be an EpisodeScore of finite"):
        await Evaluation(_WORDS, _settings(tasks=1)).run(fake)


async def test_a_score_in_numbers_of_numpy_is_counted(
    fake: FakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    value: Any = float32(0.5)

    monkeypatch.setattr(WordEnvironment, "reward", AsyncMock(return_value=EpisodeScore(value, {"part": value / 2})))
    results = tmp_path / "results.jsonl"
    done = await Evaluation(_WORDS, _settings(tasks=1, results=results)).run(fake)
    assert [each.score for each in done] == [0.5]
    assert '"part":0.25' in results.read_text()


@pytest.mark.parametrize("method", ["reset", "step", "reward"])
async def test_a_mistake_names_its_method_and_its_task(
    method: str, fake: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def mistaken(*_: object) -> None:
        raise KeyError("answer")

    mistaken.__qualname__ = f"WordEnvironment.{method}"
    monkeypatch.setattr(WordEnvironment, method, mistaken)
    with pytest.raises(KeyError) as raised:
        await Evaluation(_WORDS, _settings(tasks=1)).run(fake)
    assert describe(raised.value) == f"KeyError: 'answer' (in WordEnvironment.{method}, task 'word-0')"


async def test_long_ids_of_tasks_that_begin_alike_are_told_apart(
    fake: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WordTasks, "tasks", lambda _: [EpisodeTask("x" * 300 + end, {"word": "w"}) for end in "ab"])
    results = await Evaluation(_WORDS, _settings()).run(fake)
    assert len({each.trajectory for each in results}) == 2


def test_a_module_that_raises_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raises_at_once.py").write_text("raise RuntimeError('no card')\n")
    monkeypatch.chdir(tmp_path)
    ran = invoke("eval", "raises_at_once:tasks")
    assert ran.exit_code == 2
    assert "cannot be imported: RuntimeError('no card')" in ran.output
