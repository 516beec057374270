"""What the adapter of TRL decides, without TRL."""

from __future__ import annotations

import asyncio
import itertools
import math
import pickle
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from callsheet.client import (
    Client,
    FailureKind,
    FinishedTrajectory,
    InvalidArgumentError,
    LogProbsMode,
    Outcome,
    RewardResult,
    Succeeded,
    TrainingSample,
)
from callsheet.client.testing import FakeClient
from callsheet.client.words.outcomes import Failed, Reason
from callsheet.environments import EpisodeFailure, EpisodeRecord, EpisodeScore, EpisodeTask, FailureRule
from callsheet.environments.seats import (
    FilledSeat,
    ReplacementBudget,
    Seat,
    SeatSettings,
    spare_seats,
    take_spares,
    trajectory_name,
)
from callsheet.integrations.trl import (
    CallsheetReward,
    CallsheetRollout,
    NothingToTrainOnError,
    RewardAction,
    callsheet_score,
)
from callsheet.integrations.trl.async_worker import (
    advantages_of,
    batch_metrics,
    endless,
    graded,
    group_metrics,
    result_of,
)
from callsheet.integrations.trl.publishing import saved_before
from callsheet.integrations.trl.reward import row_of_columns, text_of_completion
from callsheet.integrations.trl.rollout import CallCounter, seats_of
from callsheet.integrations.trl.rows import columns, row_of
from callsheet.integrations.trl.sampling import sampling_of
from callsheet.v1.buffer_values import FinishedResult

from tests.support.function_runs import MODULE, run_function
from tests.support.word_environment import WordTasks

END = 9
INFRA = EpisodeFailure(FailureKind.INFRA, "state_lost", "gone")
ENV = EpisodeFailure(FailureKind.ENV, "set_up_failed", "exit code 1")


@dataclass
class Arguments:
    """The settings of a trainer."""

    max_completion_length: int | None = 8
    temperature: float = 0.7
    top_p: float = 0.9
    top_k: int | None = 0
    min_p: float | None = None


def sample(tokens: str, mask: str, version: int = 3) -> TrainingSample:
    """A sample with a digit for each token and each entry of the mask."""
    masks = tuple(map(int, mask))
    return TrainingSample(
        tuple(map(int, tokens)),
        masks,
        tuple(-0.5 if each else None for each in masks),
        tuple(version if each else None for each in masks),
        (0,),
    )


def seat(score: float | None = 1.0, failure: EpisodeFailure | None = None, **others: Any) -> FilledSeat:
    """A seat with one trajectory of two replies."""
    record = EpisodeRecord(
        EpisodeTask("t"),
        "x/0",
        score=None if score is None else EpisodeScore(score),
        failure=failure,
        samples=(sample("12345678", "00110010"),),
        turns=2,
        cut_replies=int(score is None),
    )
    return FilledSeat(record, **others)


def test_a_completion_begins_with_the_first_sampled_token() -> None:
    row = row_of([sample("12345678", "00110010")], END, most=16)
    assert (row.prompt_ids, row.completion_ids, row.mask) == ([1, 2], [3, 4, 5, 6, 7, 8], [1, 1, 0, 0, 1, 0])
    assert row.log_probs == [-0.5, -0.5, 0.0, 0.0, -0.5, 0.0]
    assert row.left_out == 0


def test_a_completion_is_cut_at_its_most_tokens() -> None:
    row = row_of([sample("12345678", "00110010")], END, most=3)
    assert (row.completion_ids, row.mask, row.left_out) == ([3, 4, 5], [1, 1, 0], 1)


def test_of_several_samples_the_longest_counts() -> None:
    row = row_of([sample("123", "001"), sample("12345", "00011")], END, most=16)
    assert (row.prompt_ids, row.completion_ids, row.left_out) == ([1, 2, 3], [4, 5], 1)


def test_what_no_engine_told_is_no_number() -> None:
    told = TrainingSample((1, 2), (0, 1), (None, None), (None, None), (0,))
    assert math.isnan(row_of([told], END, most=16).log_probs[0])


def test_a_trajectory_without_tokens_is_one_end_token_without_a_loss() -> None:
    row = row_of([], END, most=16)
    assert (row.completion_ids, row.mask, row.log_probs) == ([END], [0], [0.0])


def test_infra_is_excluded_and_env_is_a_failed_sample() -> None:
    found = columns(
        [seat(), seat(None, INFRA, replaced=2), seat(None, ENV)],
        FailureRule(),
        end_token=END,
        max_completion_tokens=16,
    )
    assert found["callsheet_score"] == [1.0, None, 0.0]
    assert found["callsheet_failure"] == [None, "INFRA/state_lost", "ENV/set_up_failed"]
    assert found["callsheet_excluded"] == [False, True, False]
    assert [any(mask) for mask in found["env_mask"]] == [True, False, True]
    assert {len(column) for column in found.values()} == {3}
    logged: dict[str, float] = {}
    assert callsheet_score(log_metric=logged.__setitem__, prompts=[], **found) == [1.0, None, 0.0]
    assert logged["callsheet/excluded"] == logged["callsheet/excluded/INFRA/state_lost"] == 1.0
    assert logged["callsheet/failed"] == logged["callsheet/failed/ENV/set_up_failed"] == 1.0
    assert (logged["callsheet/replaced"], logged["callsheet/turns"]) == (2.0, 2.0)
    assert logged["callsheet/cut_replies"] == 2.0


def test_scores_need_rollouts_of_callsheet() -> None:
    with pytest.raises(ValueError, match="needs a rollout_func that is a CallsheetRollout"):
        callsheet_score(prompts=["a"], completions=["b"])


def test_sampling_is_the_trainers() -> None:
    sampling = sampling_of(Arguments())
    assert (sampling.temperature, sampling.top_p, sampling.max_new_tokens) == (0.7, 0.9, 8)
    assert sampling.log_probs_mode is LogProbsMode.SAMPLED


def test_greedy_log_probabilities_are_the_models_own() -> None:
    sampling = sampling_of(Arguments(top_k=1))
    assert (sampling.temperature, sampling.top_p, sampling.log_probs_mode) == (0.0, 1.0, LogProbsMode.RAW)


def test_a_setting_that_no_engine_is_asked_for_is_refused() -> None:
    with pytest.raises(ValueError, match=r"min_p is 0\.1"):
        sampling_of(Arguments(min_p=0.1))


def test_equal_prompts_that_follow_each_other_are_siblings() -> None:
    one, two = EpisodeTask("one"), EpisodeTask("two")
    seats = list(seats_of("train/3.0/0", [one, one, two, one]))
    assert [each.group_size for each in seats] == [2, 2, 1, 1]
    assert len({each.seat_id for each in seats}) == 4
    assert len({each.group_id for each in seats}) == 3
    # The same prompts have the same ids after a restart; other ones never do.
    assert seats == list(seats_of("train/3.0/0", [one, one, two, one]))
    other = EpisodeTask("one", {"seed": 2})
    assert not {each.seat_id for each in seats} & {each.seat_id for each in seats_of("train/3.0/0", [other] * 4)}


def test_calls_are_numbered_within_a_step() -> None:
    calls = CallCounter()
    names = [calls.name("train", 0), calls.name("train", 0), calls.name("eval", 0), calls.name("train", 1)]
    assert names == ["train/0.0", "train/0.1", "eval/0.0", "train/1.0"]


def test_a_budget_is_spent_once() -> None:
    budget = ReplacementBudget(1)
    assert [budget.take(), budget.take()] == [True, False]
    assert [trajectory_name("s", number) for number in (0, 1)] == ["s", "s~1"]
    assert Seat("s", "g", 1, EpisodeTask("t")).group_size == 1


def test_a_spare_takes_the_seat_of_what_was_cancelled_and_of_no_other_failure() -> None:
    siblings = [Seat(f"g/{number}", "g", 3, EpisodeTask("t")) for number in range(3)]
    everyone = [*siblings, *spare_seats(siblings, 2)]
    assert [each.seat_id for each in everyone[3:]] == ["g/spare-0", "g/spare-1"]
    cancelled = EpisodeFailure(FailureKind.CANCELLED, "cancelled", "its group has its quorum")
    filled = [seat(None, cancelled), seat(None, ENV), seat(0.5), seat(0.75), seat(None, cancelled)]
    found = take_spares(everyone, filled)[:3]
    assert found == [filled[3], filled[1], filled[2]]
    # Of another group none is taken.
    others = [*siblings, Seat("h/0", "h", 1, EpisodeTask("t"))]
    assert take_spares(others, filled[:4])[0] is filled[2]
    with pytest.raises(ValueError, match="spare is -1"):
        SeatSettings(spare=-1)


def test_a_rollout_pickles_and_names_its_tasks() -> None:
    rollout = pickle.loads(pickle.dumps(CallsheetRollout("127.0.0.1:1", WordTasks(2), job_id="j")))
    assert [row["task_id"] for row in rollout.dataset_rows()] == ["word-0", "word-1"]
    trainer = SimpleNamespace(model=None, state=SimpleNamespace(global_step=0))
    with pytest.raises(KeyError, match="must be the id of a task"):
        rollout([[{"role": "user", "content": "word-9"}]], trainer)


def test_a_step_on_nothing_is_refused() -> None:
    rollout = CallsheetRollout("127.0.0.1:1", WordTasks(2), job_id="j")
    with pytest.raises(NothingToTrainOnError, match="none of 2 trajectories is a sample: INFRA/state_lost"):
        rollout._refuse_nothing([seat(None, INFRA), seat(None, INFRA)], "train")
    rollout._refuse_nothing([seat(None, INFRA), seat()], "train")


def finished(result: FinishedResult | None, name: str = "g/0", staleness: int = 0) -> FinishedTrajectory:
    assert result is not None
    return FinishedTrajectory(name, "g", result.reward, result.payload, staleness=staleness)


def test_advantages_are_against_siblings() -> None:
    assert advantages_of([1.0, 0.0]) == [pytest.approx(1.0), pytest.approx(-1.0)]
    assert advantages_of([1.0, 1.0]) == [0.0, 0.0]


def test_samples_come_out_of_the_buffer_as_they_went_in_and_what_was_lost_never_goes_in() -> None:
    rule, said = FailureRule(), seat(1.0).record
    assert result_of(seat(None, INFRA).record, rule) is None
    first, second = graded([finished(result_of(each, rule)) for each in (said, seat(None, ENV).record)])
    assert (first.trajectory.reward, second.trajectory.reward) == (1.0, 0.0)
    assert [first.advantage, second.advantage] == [pytest.approx(1.0), pytest.approx(-1.0)]
    assert (first.task_id, first.turns, list(first.messages)) == (said.task.task_id, said.turns, list(said.messages))
    (sample,) = said.samples
    assert (tuple(first.token_ids), tuple(first.loss_mask)) == (sample.token_ids, sample.loss_mask)
    assert first.log_probs == [0.0 if each is None else each for each in sample.log_probs]


def test_counts_of_a_group_and_staleness_of_a_batch() -> None:
    figures = group_metrics([seat(1.0), seat(None, INFRA, replaced=1), seat(None, ENV)], FailureRule())
    assert figures["callsheet/excluded_total"] == figures["callsheet/failed_total"] == 1.0
    assert (figures["callsheet/replaced_total"], figures["callsheet/cut_replies_total"]) == (1.0, 2.0)
    result = result_of(seat(1.0).record, FailureRule())
    assert batch_metrics([finished(result, staleness=each) for each in (0, 2, 2, 4)]) == {
        "callsheet/batch_trajectories": 4.0,
        "callsheet/staleness_mean": 2.0,
        "callsheet/staleness_max": 4.0,
        "callsheet/staleness/0_total": 1.0,
        "callsheet/staleness/2_total": 2.0,
        "callsheet/staleness/4_total": 1.0,
    }


def test_tasks_come_again_and_again() -> None:
    tasks = [EpisodeTask(str(number)) for number in range(3)]
    order = [task.task_id for task in itertools.islice(endless(tasks, seed=1), 6)]
    assert sorted(order[:3]) == sorted(order[3:]) == ["0", "1", "2"]


def test_old_saved_models_go(tmp_path: Any) -> None:
    for version in (1, 2, 3):
        (tmp_path / f"version-{version}").mkdir()
    assert {path.name for path in saved_before(tmp_path, 4, keep=2)} == {"version-1", "version-2"}


def test_a_rewards_row_and_text() -> None:
    row = row_of_columns({"level": [1, 2], "trainer_state": [0, 0], "one": 3}, 1, 2)
    assert row == {"level": 2}
    assert text_of_completion([{"role": "assistant", "content": "a"}, {"role": "tool", "content": ""}]) == "a"
    assert text_of_completion("b") == "b"


@pytest.mark.parametrize(
    ("outcome", "reward"),
    [
        (Succeeded(value=RewardResult(0.5)), 0.5),
        (Failed(kind=FailureKind.INFRA, reason=Reason.STATE_LOST), None),
        (Failed(kind=FailureKind.TIMEOUT), 0.0),
    ],
)
def test_a_reward_action_that_fails(
    monkeypatch: pytest.MonkeyPatch, outcome: Outcome[RewardResult], reward: float | None
) -> None:
    async def action(*_: Any) -> Outcome[RewardResult]:
        return outcome

    assert asyncio.run(rewarded(monkeypatch, action)) == [reward] * 2


async def rewarded(monkeypatch: pytest.MonkeyPatch, action: RewardAction | str) -> list[float | None]:
    """What two completions are worth."""
    fake = FakeClient()
    fake.on_reward_script(run_function)
    monkeypatch.setattr(Client, "from_env", lambda **_: fake)
    columns: dict[str, Any] = {
        "least": [2, 8],
        "trainer_state": object(),
        "completion_ids": [np.array([1]), np.array([2, 3])],
    }
    return await CallsheetReward("fake:1", action, job_id="j")(["?", "?"], ["four", "four"], **columns)


def test_a_function_of_trl_is_called_as_trl_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert asyncio.run(rewarded(monkeypatch, f"{MODULE}:trl_like")) == [1.0, 0.0]
    assert asyncio.run(rewarded(monkeypatch, f"{MODULE}:missing")) == [0.0, 0.0], "it failed by itself"
    with pytest.raises(InvalidArgumentError, match=r"package\.module:function"):
        asyncio.run(rewarded(monkeypatch, "dotted.path"))


def test_rewards_are_logged_by_their_name() -> None:
    for action, name, logged in ((counted, "", "callsheet_reward"), ("a.b:c", "", "c"), ("a.b:c", "mine", "mine")):
        assert CallsheetReward("127.0.0.1:1", action, job_id="j", name=name).__name__ == logged


async def counted(*_: Any) -> Outcome[RewardResult]:
    """Says nothing of the completion."""
    return Succeeded(value=RewardResult(1.0))
