"""Failures of episodes, and what a trainer makes of them: a pure core without I/O.

A failure of the service says nothing about the model, so it is never a reward of 0. A failure of the task or of the
model is data: a failed episode with its named reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from callsheet.client import (
    BadTextError,
    Cancelled,
    ConnectionLostError,
    EnvResetResult,
    Expired,
    Failed,
    FailedPreconditionError,
    FailureKind,
    NotSucceededError,
    Outcome,
    PayloadError,
    QueueFullError,
    Reason,
    RewardResult,
    TrajectoryEnd,
    UnavailableError,
)

NOBODYS_FAULT: Final = frozenset({FailureKind.INFRA, FailureKind.CANCELLED, FailureKind.QUOTA, FailureKind.UNSPECIFIED})
"""Kinds of failure that tell nothing of the model, nor of the task."""
_NO_VERDICTS: Final = frozenset(
    each.value
    for each in (
        Reason.BAD_MESSAGES,
        Reason.NO_TOKENIZER,
        Reason.NO_TOKENS,
        Reason.PROMPT_TOO_LONG,
        Reason.PROVIDER_REFUSED,
        Reason.SCORE_MALFORMED,
        Reason.SCORE_MISSING,
        Reason.WRONG_KIND_OF_MODEL,
    )
)
_KNOWN_REASONS: Final = frozenset(reason.value for reason in Reason)
_MOST_MESSAGE: Final = 500


@dataclass(frozen=True, slots=True)
class EpisodeFailure:
    """Reason why an episode has no score.

    Attributes:
        kind: Due to whom or what. An action that ran out of time in a queue is INFRA.
        reason: One word, mostly of `callsheet.client.Reason`.
        message: A sentence for people.
    """

    kind: FailureKind
    reason: str
    message: str = ""

    @property
    def name(self) -> str:
        """The failure as "KIND/reason"."""
        return f"{self.kind.name}/{self.reason}"

    @property
    def is_infra(self) -> bool:
        """Returns whether the service failed, so that another trajectory may do better."""
        return self.kind is FailureKind.INFRA

    @property
    def end(self) -> TrajectoryEnd:
        """The end with which its trajectory is to be closed."""
        return TrajectoryEnd.LOST if self.is_infra else TrajectoryEnd.ABANDONED

    def throw(self) -> NoReturn:
        """Raises the NotSucceededError of its kind, for what closes a trajectory by its error: a block or a group."""
        if self.kind is FailureKind.CANCELLED:
            cancelled: Cancelled[object] = Cancelled(reason=self.message)
            cancelled.unwrap()
        known = self.reason in _KNOWN_REASONS
        reason = Reason(self.reason) if known else Reason.OTHER
        message = self.message if known else f"{self.reason}: {self.message}"
        failed: Failed[object] = Failed(kind=self.kind, reason=reason, message=message)
        failed.unwrap()

    def __str__(self) -> str:
        """One line: kind, reason and message."""
        return f"{self.kind.name} {self.reason}" + (f": {self.message}" if self.message else "")


def failure_of(error: BaseException) -> EpisodeFailure | None:
    """Returns the failure that an exception tells of; None for a mistake of its caller, which is to be raised.

    Of several at once the first that says something about the task or the model counts.
    """
    found = [_failure_of(each) for each in _leaves(error)]
    failures = [each for each in found if each is not None]
    if not failures or len(failures) < len(found):
        return None
    return next((each for each in failures if each.kind not in NOBODYS_FAULT), failures[0])


def failure_of_outcome(outcome: Outcome[Any]) -> EpisodeFailure | None:
    """Returns the failure of an outcome; None of a success."""
    if isinstance(outcome, Failed):
        message = outcome.message + _last_words(outcome)
        return EpisodeFailure(outcome.kind, outcome.reason.value, message[:_MOST_MESSAGE])
    if isinstance(outcome, Cancelled):
        return EpisodeFailure(FailureKind.CANCELLED, "cancelled", outcome.reason)
    if isinstance(outcome, Expired):
        return EpisodeFailure(FailureKind.INFRA, outcome.timeout.value, "it ran out before the action could finish")
    return None


@dataclass(frozen=True, slots=True)
class TrainerReward:
    """Reward of an episode for a trainer.

    Attributes:
        reward: The reward; None for an episode that is no sample, which the trainer masks, drops or replaces.
        failure: The reason why it has no score of its own; None if it has one.
    """

    reward: float | None
    failure: EpisodeFailure | None = None

    @property
    def is_excluded(self) -> bool:
        """Returns whether the episode is no sample."""
        return self.reward is None


@dataclass(frozen=True, slots=True)
class FailureRule:
    """Rule for episodes without a score, by the job's setting.

    Attributes:
        excluded: Kinds of failure that make no sample. INFRA is always one of them. An ENV failure of the scorer is no
            sample either, whatever the kinds are: a judge that gave no score, for instance.
        failed_reward: The reward of an episode that failed otherwise.
    """

    excluded: frozenset[FailureKind] = NOBODYS_FAULT
    failed_reward: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError where a failure of the service would become a reward."""
        if FailureKind.INFRA not in self.excluded:
            raise ValueError("excluded: must have FailureKind.INFRA: a failure of the service is never a reward")

    @classmethod
    def of_names(cls, excluded: Iterable[str], failed_reward: float) -> FailureRule:
        """Returns the rule that excludes more kinds than by default, as a trainer's configuration names them.

        Raises:
            KeyError: A name is no kind of failure.
        """
        return cls(NOBODYS_FAULT | {FailureKind[name] for name in excluded}, failed_reward)

    def decide(self, score: float | None, failure: EpisodeFailure | None) -> TrainerReward:
        """Returns what a trainer takes of an episode with this score or this failure."""
        if failure is None:
            return TrainerReward(score)
        if failure.kind in self.excluded or (failure.kind is FailureKind.ENV and failure.reason in _NO_VERDICTS):
            return TrainerReward(None, failure)
        return TrainerReward(self.failed_reward, failure)


DEFAULT_RULE: Final = FailureRule()


@dataclass(frozen=True, slots=True)
class FailureCounts:
    """How many episodes of a step had no score, by "KIND/reason".

    Attributes:
        excluded: Of those that are no samples.
        failed: Of those with the reward of a failure.
        episodes: All episodes, those with a score included.
    """

    excluded: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    episodes: int = 0

    def metrics(self) -> dict[str, float]:
        """Returns the counts as a trainer logs them."""
        named = {f"excluded/{name}": float(count) for name, count in self.excluded.items()}
        named |= {f"failed/{name}": float(count) for name, count in self.failed.items()}
        return {
            "episodes": float(self.episodes),
            "excluded": float(self.excluded.total()),
            "failed": float(self.failed.total()),
            **named,
        }


def count_failures(rewards: Iterable[TrainerReward]) -> FailureCounts:
    """Returns the counts of a step."""
    excluded, failed, episodes = Counter[str](), Counter[str](), 0
    for each in rewards:
        episodes += 1
        if each.failure is not None:
            counts = excluded if each.is_excluded else failed
            counts[each.failure.name] += 1
    return FailureCounts(excluded, failed, episodes)


def _last_words(failed: Failed[Any]) -> str:
    """Returns what a set-up that failed, or a reward that ran out of time, printed last.

    That mostly names what the sandbox lacks. Messages of other rewards have it already.
    """
    partial, run = failed.partial, None
    if isinstance(partial, EnvResetResult):
        run = partial.set_up
    elif isinstance(partial, RewardResult) and failed.kind is FailureKind.TIMEOUT:
        run = partial.command
    said = (run.stderr or run.stdout).decode(errors="replace").strip() if run is not None else ""
    return f": {said.splitlines()[-1]}" if said else ""


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


def _failure_of(error: BaseException) -> EpisodeFailure | None:
    match error:
        case NotSucceededError():
            return failure_of_outcome(error.outcome)
        case BadTextError():
            return EpisodeFailure(FailureKind.POLICY, Reason.BAD_COMMAND.value, str(error)[:_MOST_MESSAGE])
        case ConnectionLostError():
            return EpisodeFailure(FailureKind.INFRA, "connection_lost", str(error))
        case PayloadError():
            return EpisodeFailure(FailureKind.INFRA, Reason.PAYLOAD_ERROR.value, str(error))
        case QueueFullError() | UnavailableError():
            return EpisodeFailure(FailureKind.INFRA, error.code.value.lower(), str(error))
        case FailedPreconditionError() if error.field == "trajectory_id":
            return EpisodeFailure(FailureKind.CANCELLED, "trajectory_closed", str(error))
        case _:
            return None
