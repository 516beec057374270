"""What becomes of episodes that failed, for a trainer: never a reward of 0 for the service's own failures."""

from __future__ import annotations

import pytest
from callsheet.client import (
    CommandResult,
    ConnectionLostError,
    EnvError,
    EnvResetResult,
    Failed,
    FailureKind,
    InfraError,
    Reason,
    RefusalCode,
    RewardResult,
    TrajectoryEnd,
)
from callsheet.client.errors import invalid, refused, unfit
from callsheet.environments import EpisodeFailure, FailureRule, TrainerReward, count_failures
from callsheet.environments.failures import failure_of, failure_of_outcome

_INFRA = InfraError(Failed(FailureKind.INFRA, Reason.STATE_LOST, "gone"))
_ENV = EnvError(Failed(FailureKind.ENV, Reason.SET_UP_FAILED, "exit code 1"))


@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        (_INFRA, FailureKind.INFRA, "state_lost"),
        (_ENV, FailureKind.ENV, "set_up_failed"),
        (ConnectionLostError("away"), FailureKind.INFRA, "connection_lost"),
        (refused(RefusalCode.RESOURCE_EXHAUSTED, rule="full"), FailureKind.INFRA, "resource_exhausted"),
        (unfit("trajectory_id", "t", "closed"), FailureKind.CANCELLED, "trajectory_closed"),
        (ExceptionGroup("both", [_INFRA, ExceptionGroup("in", [_ENV])]), FailureKind.ENV, "set_up_failed"),
        (ExceptionGroup("both", [_INFRA, _INFRA]), FailureKind.INFRA, "state_lost"),
    ],
)
def test_an_error_tells_its_failure(error: Exception, kind: FailureKind, reason: str) -> None:
    failure = failure_of(error)
    assert failure is not None
    assert (failure.kind, failure.reason) == (kind, reason)


@pytest.mark.parametrize(
    "error", [KeyError("x"), invalid("files", "x", "a rule"), ExceptionGroup("both", [_INFRA, KeyError("x")])]
)
def test_a_mistake_is_no_failure(error: Exception) -> None:
    assert failure_of(error) is None


def test_the_services_failures_are_never_a_reward() -> None:
    decided = FailureRule().decide(None, EpisodeFailure(FailureKind.INFRA, "manager_lost"))
    assert (decided.reward, decided.is_excluded) == (None, True)
    with pytest.raises(ValueError, match="INFRA"):
        FailureRule(excluded=frozenset())


@pytest.mark.parametrize("kind", [FailureKind.ENV, FailureKind.TIMEOUT, FailureKind.POLICY, FailureKind.RESOURCE_LIMIT])
def test_other_failures_keep_their_name_and_get_the_jobs_reward(kind: FailureKind) -> None:
    failure = EpisodeFailure(kind, "some_reason")
    assert FailureRule().decide(None, failure) == TrainerReward(0.0, failure)
    assert FailureRule(failed_reward=-1.0).decide(None, failure).reward == -1.0
    assert failure.end is TrajectoryEnd.ABANDONED


@pytest.mark.parametrize("reason", ["score_missing", "score_malformed", "provider_refused", "prompt_too_long"])
def test_a_scorer_without_a_verdict_gives_no_reward(reason: str) -> None:
    assert FailureRule().decide(None, EpisodeFailure(FailureKind.ENV, reason)).is_excluded
    # The same reward succeeds on the first state: the policy is at fault.
    assert FailureRule().decide(None, EpisodeFailure(FailureKind.POLICY, reason)).reward == 0.0


def test_a_job_may_exclude_more() -> None:
    rule = FailureRule(excluded=frozenset({FailureKind.INFRA, FailureKind.ENV}))
    assert rule.decide(None, EpisodeFailure(FailureKind.ENV, "no_tests")).is_excluded
    assert rule.decide(0.25, None) == TrainerReward(0.25)


def test_both_counts_are_logged() -> None:
    rule = FailureRule()
    rewards = [
        rule.decide(1.0, None),
        rule.decide(None, EpisodeFailure(FailureKind.INFRA, "manager_lost")),
        rule.decide(None, EpisodeFailure(FailureKind.ENV, "no_tests")),
        rule.decide(None, EpisodeFailure(FailureKind.ENV, "no_tests")),
    ]
    assert count_failures(rewards).metrics() == {
        "episodes": 4.0,
        "excluded": 1.0,
        "failed": 2.0,
        "excluded/INFRA/manager_lost": 1.0,
        "failed/ENV/no_tests": 2.0,
    }


def test_a_failure_can_be_thrown_again() -> None:
    failure = failure_of(_INFRA)
    assert failure is not None
    with pytest.raises(InfraError, match="state_lost"):
        failure.throw()


def test_a_set_up_that_failed_and_a_reward_without_an_end_tell_their_last_words() -> None:
    run = CommandResult(1, stderr=b"Traceback:\nModuleNotFoundError: No module named 'x'\n")
    late: Failed[RewardResult] = Failed(
        FailureKind.TIMEOUT, Reason.START_TO_CLOSE, "", partial=RewardResult(0.0, command=run)
    )
    assert str(failure_of_outcome(late)).endswith("No module named 'x'")
    said = EnvResetResult("s", run)
    failure = failure_of(EnvError(Failed(FailureKind.ENV, Reason.SET_UP_FAILED, "exit code 1", partial=said)))
    assert failure is not None
    assert failure.message == "exit code 1: ModuleNotFoundError: No module named 'x'"
