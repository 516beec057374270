"""What verl is given and gives, without verl: sampling, rows, policies, rewards, and what pickles."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from callsheet.client import (
    Client,
    CommandResult,
    EnvResetResult,
    Failed,
    FailureKind,
    Job,
    LogProbsMode,
    Outcome,
    Reason,
    RewardResult,
    RewardScript,
    Succeeded,
    TrainingSample,
)
from callsheet.client.testing import FakeClient
from callsheet.environments import (
    EpisodeEnd,
    EpisodeFailure,
    EpisodeRecord,
    EpisodeScore,
    EpisodeTask,
    FailureRule,
    run_episode,
)
from callsheet.gateway.renderers.byte_renderer import ByteRenderer
from callsheet.integrations.borrowed_sandbox import client_of
from callsheet.integrations.verl.counts import absent_samples, failure_counts
from callsheet.integrations.verl.lent import LentTrajectory, lending, lent_trajectory
from callsheet.integrations.verl.policy import ServerPolicy
from callsheet.integrations.verl.rows import dataset_rows, output_fields, task_of, version_spans
from callsheet.integrations.verl.sampling import sampling_of
from callsheet.integrations.verl.score import LostRewardError, score_by_actions
from callsheet.v1.names import END_OF_TURN_TOKEN

from tests.support.function_runs import MODULE, run_function
from tests.support.word_environment import WordTasks

VERLS = {"temperature": 1.0, "top_p": 0.9, "top_k": -1, "repetition_penalty": 1.0, "logprobs": True}


def test_sampling_is_verls() -> None:
    found = sampling_of({**VERLS, "stop_token_ids": [7]}, 32)
    assert (found.max_new_tokens, found.temperature, found.top_p, found.top_k) == (32, 1.0, 0.9, 0)
    assert (tuple(found.stop_token_ids), found.log_probs_mode) == ((7,), LogProbsMode.SAMPLED)
    assert sampling_of({**VERLS, "max_tokens": 8}, 32).max_new_tokens == 8
    greedy = sampling_of({**VERLS, "temperature": 0}, 32)
    assert (greedy.temperature, greedy.top_p, greedy.log_probs_mode) == (0.0, 1.0, LogProbsMode.RAW)


@pytest.mark.parametrize(("name", "value"), [("repetition_penalty", 1.2), ("min_p", 0.1), ("guided_json", "{}")])
def test_sampling_that_no_engine_knows_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=name):
        sampling_of({**VERLS, name: value}, 32)


def test_rows_carry_their_task() -> None:
    tasks = WordTasks()
    rows = dataset_rows(tasks)
    assert [task_of(row) for row in rows] == list(tasks.tasks())
    assert json.loads(json.dumps(rows)) == rows
    with pytest.raises(ValueError, match="extra_info"):
        task_of({"extra_info": {"index": 1}})


SAMPLE = TrainingSample(
    token_ids=(1, 2, 3, 4, 5, 6, 7),
    loss_mask=(0, 0, 1, 1, 0, 1, 1),
    log_probs=(None, None, -0.1, -0.2, None, -0.3, -0.4),
    versions=(None, None, 3, 3, None, 3, 4),
    turns=(0, 1),
)


def fields_of(score: float | None, failure: EpisodeFailure | None = None, **bounds: int) -> dict[str, Any]:
    end = EpisodeEnd.DONE if failure is None else EpisodeEnd.FAILED
    given = None if score is None else EpisodeScore(score)
    record = EpisodeRecord(EpisodeTask("task"), "t", end, given, failure, (SAMPLE,), 2)
    asked = {"prompt_length": 8, "response_length": 8, **bounds}
    return output_fields(record, FailureRule(), end_token=9, **asked)


def test_an_output_has_prompt_response_and_spans_of_versions() -> None:
    fields = fields_of(0.5)
    assert (fields["prompt_ids"], fields["response_ids"]) == ([1, 2], [3, 4, 5, 6, 7])
    assert fields["response_mask"] == [1, 1, 0, 1, 1]
    assert fields["response_logprobs"] == [-0.1, -0.2, 0.0, -0.3, -0.4]
    assert fields["reward_score"] == 0.5
    extra = fields["extra_fields"]
    assert extra["callsheet_versions"] == [(3, 0, 2), (3, 3, 4), (4, 4, 5)]
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (3, 4)
    assert (extra["callsheet_excluded"], extra["callsheet_failed"], extra["callsheet_failure"]) == (0.0, 0.0, "")


def test_an_output_keeps_verls_bounds() -> None:
    fields = fields_of(0.5, prompt_length=1, response_length=3)
    assert (fields["prompt_ids"], fields["response_ids"], fields["response_mask"]) == ([2], [3, 4, 5], [1, 1, 0])
    assert fields["extra_fields"]["callsheet_left_out_tokens"] == 2


def test_what_is_excluded_has_no_loss() -> None:
    fields = fields_of(None, EpisodeFailure(FailureKind.INFRA, "state_lost"))
    assert fields["response_mask"] == [0] * 5
    assert fields["reward_score"] == 0.0
    assert fields["extra_fields"]["callsheet_excluded"] == 1.0
    # verl asks each sample for the keys of the first.
    assert fields["extra_fields"]["reward_extra_info"]["acc"] == 0.0


def test_what_failed_otherwise_is_a_sample() -> None:
    fields = fields_of(None, EpisodeFailure(FailureKind.ENV, "set_up_failed"))
    assert fields["response_mask"] == [1, 1, 0, 1, 1]
    assert fields["reward_score"] == 0.0
    extra = fields["extra_fields"]
    assert (extra["callsheet_failed"], extra["callsheet_failure"]) == (1.0, "ENV/set_up_failed")


def test_an_episode_without_a_token_is_one_token_without_a_loss() -> None:
    record = EpisodeRecord(EpisodeTask("task"), "t", score=EpisodeScore(1.0))
    fields = output_fields(record, FailureRule(), prompt_length=8, response_length=8, end_token=9)
    assert (fields["prompt_ids"], fields["response_ids"], fields["response_mask"]) == ([9], [9], [0])


def test_spans_of_nothing() -> None:
    assert version_spans([None, None]) == []


@dataclass
class Said:
    """What a server of verl generated."""

    token_ids: list[int]
    log_probs: list[float] | None
    stop_reason: str | None = "completed"
    extra_fields: dict[str, Any] = field(default_factory=lambda: {"min_global_steps": 2, "max_global_steps": 2})


class TwoWordServer:
    """Says a word, is cut once by an update of weights, and goes on."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[int], Mapping[str, Any]]] = []
        self.lent: list[LentTrajectory | None] = []

    async def generate(self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any]) -> Said:
        self.asked.append((request_id, prompt_ids, sampling_params))
        self.lent.append(lent_trajectory())
        if len(self.asked) == 1:
            return Said(list(b"w"), [-0.5], "aborted")
        return Said([*b"ord", END_OF_TURN_TOKEN], [-0.25] * 4, extra_fields={"callsheet_versions": [(3, 0, 4)]})


async def test_a_policy_over_verls_servers_is_token_exact() -> None:
    fake = FakeClient()
    fake.on_env_reset(lambda _: Succeeded(EnvResetResult("s")))
    fake.on_env_step(lambda _: Succeeded(CommandResult(0)))
    fake.on_reward_tests(lambda _: Succeeded(RewardResult(1.0, passed=1, total=1)))
    server = TwoWordServer()
    policy = ServerPolicy(ByteRenderer(), server, VERLS, sampling_of(VERLS, 64), max_completion_tokens=64)
    task = WordTasks().tasks()[0]
    job = await fake.open_job("job")
    async with job.trajectory("t") as trajectory:
        record = await run_episode(trajectory, WordTasks().environment(task), task, policy, max_turns=1)
    (sample,) = record.samples
    first = sample.loss_mask.index(1)
    assert sample.token_ids[first:] == (*b"word", END_OF_TURN_TOKEN)
    assert sample.log_probs[first:] == (-0.5, -0.25, -0.25, -0.25, -0.25)
    assert sample.versions[first:] == (2, 3, 3, 3, 3)
    (name, prompt, params), (again, longer, fewer) = server.asked
    assert name == again == "t"
    assert longer == [*prompt, *b"w"]
    assert (params["max_tokens"], fewer["max_tokens"]) == (64, 63)
    # A server client of Callsheet finds the trajectory that it generates for.
    assert [each and each.trajectory.trajectory_id for each in server.lent] == ["t", "t"]
    assert lent_trajectory() is None


async def passes(job: Job, response: str, row: Mapping[str, Any]) -> Outcome[RewardResult]:
    """Scores by the row."""
    del job, response
    told: Outcome[RewardResult] = row["ground_truth"]
    return told


async def scored(monkeypatch: pytest.MonkeyPatch, outcome: Outcome[RewardResult]) -> dict[str, Any]:
    fake = FakeClient()
    monkeypatch.setattr(Client, "from_env", lambda **_: fake)
    return await score_by_actions("fake:1", passes, job_id="job")("notes", "text", outcome, {})


async def test_rewards_by_actions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = await scored(monkeypatch, Succeeded(RewardResult(0.75)))
    assert found == {"score": 0.75, "callsheet_excluded": 0.0, "callsheet_failed": 0.0, "callsheet_failure": ""}
    found = await scored(monkeypatch, Failed(FailureKind.ENV, Reason.OTHER, ""))
    assert (found["score"], found["callsheet_failed"], found["callsheet_failure"]) == (0.0, 1.0, "ENV/other")
    with pytest.raises(LostRewardError, match="INFRA"):
        await scored(monkeypatch, Failed(FailureKind.INFRA, Reason.MANAGER_LOST, ""))


async def test_a_function_of_verl_is_called_as_verl_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fake, images = FakeClient(), []

    def run(script: RewardScript) -> Outcome[RewardResult]:
        images.append(script.image)
        return run_function(script)

    fake.on_reward_script(run)
    monkeypatch.setattr(Client, "from_env", lambda **_: fake)
    compute_score = score_by_actions("fake:1", f"{MODULE}:verl_like", job_id="job", image="graders")
    # verl says the turns by numpy.
    row: dict[str, Any] = {"data_source": "d", "solution_str": "4", "extra_info": {"num_turns": np.int32(2)}}
    assert [(await compute_score(**row, ground_truth=truth))["score"] for truth in (4, 5)] == [1.0, 0.0]
    failed = await compute_score(**{**row, "extra_info": {}}, ground_truth=4)
    assert (failed["score"], failed["callsheet_failure"]) == (0.0, "ENV/script_failed")
    assert images == ["graders"] * 3


def test_what_goes_to_actors_pickles_unconnected() -> None:
    cloudpickle: Any = pytest.importorskip("ray.cloudpickle")
    for action in (passes, "a.b:c"):
        compute_score = cloudpickle.loads(cloudpickle.dumps(score_by_actions("127.0.0.1:1", action, job_id="job")))
        assert callable(compute_score)
    client = cloudpickle.loads(cloudpickle.dumps(client_of("127.0.0.1:1")))
    assert client.target == "127.0.0.1:1"


async def test_a_trajectory_is_lent_within_its_block_alone() -> None:
    job = await FakeClient().open_job("job")
    given = LentTrajectory(job.trajectory("t"))
    with lending(given) as held:
        assert lent_trajectory() is held
    assert lent_trajectory() is None


def test_a_steps_failures_are_counted_by_kind_and_reason() -> None:
    samples: list[dict[str, Any]] = [
        {"callsheet_failed": 1.0, "callsheet_failure": "ENV/no_server", "callsheet_replaced": 1},
        {"callsheet_excluded": 1.0, "callsheet_failure": "INFRA/lost", "callsheet_cut_replies": 1.0},
        {"callsheet_failed": 0.0, "callsheet_excluded": 0.0, "callsheet_failure": ""},
        {},
    ]
    assert failure_counts(samples, absent=2) == {
        "callsheet/excluded": 3.0,
        "callsheet/failed": 1.0,
        "callsheet/replaced": 1.0,
        "callsheet/cut_replies": 1.0,
        "callsheet/failed/ENV/no_server": 1.0,
        "callsheet/excluded/INFRA/lost": 1.0,
    }
    assert failure_counts([]) == dict.fromkeys(
        ("callsheet/excluded", "callsheet/failed", "callsheet/replaced", "callsheet/cut_replies"), 0.0
    )


def test_samples_that_are_not_there_are_counted() -> None:
    assert absent_samples(["a_b_0_0", "a_b_0_1", "a_b_2_0", "c_1_0"], 3) == 3
    assert absent_samples([], 3) == 0
