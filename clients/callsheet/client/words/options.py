"""Keyword arguments of an action of any kind, and how a model samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, Final, TypedDict

from callsheet.client.words.arguments import no_unknown
from callsheet.client.words.demand import Demand


class LogProbsMode(Enum):
    """Of which distribution log-probabilities are. Trainers that correct for off-policy samples must know."""

    SAMPLED = "sampled"
    """Of the one that tokens were drawn from: after temperature, top_k and top_p. Greedy sampling gives 0 for each."""
    RAW = "raw"
    """Of the model's own output at temperature 1, over its whole vocabulary."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample. Nothing is greedy by default, and without a seed each request draws its own.

    Attributes:
        max_new_tokens: The most new tokens, at least 1.
        temperature: 1 is the model's own distribution, 0 is greedy.
        top_p: Nucleus mass in (0, 1]; 1 is off.
        top_k: Keep the k most likely tokens; 0 means all.
        seed: Seed of this request's own random stream: the same seed, prompt and weights give the same tokens. None:
            the engine draws one, which the result tells.
        stop: Generation stops once the text of the new tokens contains any of these. An engine without a tokenizer
            fails the action as ENV `no_tokenizer`.
        stop_token_ids: Generation stops after any of these tokens.
        ignore_eos: Whether the model's own end tokens do not end generation.
        log_probs_mode: Of which distribution the log-probabilities are to be.
    """

    max_new_tokens: int = 16
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    log_probs_mode: LogProbsMode = LogProbsMode.SAMPLED
    ignore_eos: bool = False


class Unservable(Enum):
    """The treatment of an action that no registered manager can ever serve."""

    REFUSE = "refuse"
    """Refuse the submit with FailedPreconditionError."""
    WAIT = "wait"
    """Queue it until a manager can serve it or its schedule-to-start time runs out."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The four deadlines of an action, in seconds; None takes the server's default.

    Attributes:
        schedule_to_start_s: From submit to the start of the first attempt. Then the action is `Expired`.
        start_to_close_s: Execution clock of one attempt. Then it fails as TIMEOUT.
        schedule_to_close_s: From submit to the outcome, retries included. Then the action is `Expired`.
        heartbeat_s: The longest silence of a running attempt. Then it fails as INFRA.
    """

    schedule_to_start_s: float | None = None
    start_to_close_s: float | None = None
    schedule_to_close_s: float | None = None
    heartbeat_s: float | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """When and how often a failed attempt is tried again; None takes the server's default.

    Attributes:
        max_attempts: Attempts in all; 1 never retries.
        initial_backoff_s: Wait before the second attempt, in seconds.
        backoff_multiplier: Growth of the wait per further attempt; at least 1.
        max_backoff_s: Ceiling of the wait, in seconds.
    """

    max_attempts: int | None = None
    initial_backoff_s: float | None = None
    backoff_multiplier: float | None = None
    max_backoff_s: float | None = None


class ActionOptions(TypedDict, total=False):
    """Keyword arguments that every action takes.

    Attributes:
        action_id: The idempotency key, unique in the job; None makes a new one. A submit under the id of an earlier one
            with the same body attaches to it.
        label: Class of work for prediction and reports, for instance "pytest" or "edit".
        task: The task (prompt) it belongs to; siblings of a group share it.
        demand: Its units; None takes the kind's default.
        timeouts: Its deadlines; None takes the server's defaults.
        retry: Its retries; None takes the server's defaults.
        weight: Weight in the mean completion time; above 0. A job's fair share is another thing: `open_job(share=)`.
        unservable: Its treatment if no registered manager can ever serve it.
        expected_duration_s: Hint: expected execution time at the fewest units, in seconds.
    """

    action_id: str | None
    label: str
    task: str
    demand: Demand | None
    timeouts: Timeouts | None
    retry: Retry | None
    weight: float
    unservable: Unservable
    expected_duration_s: float | None


_KNOWN: Final = tuple(ActionOptions.__annotations__)
_HINTS: Final = {each.name: f"pass sampling=Sampling({each.name}=...)" for each in fields(Sampling)} | {
    "max_tokens": "pass sampling=Sampling(max_new_tokens=...)",
    "in_sandbox": "pass where=Where.IN_SANDBOX or where=Where.FRESH",
    "timeout": "pass timeouts=Timeouts(start_to_close_s=...)",
    "timeout_s": "pass timeouts=Timeouts(start_to_close_s=...)",
}


def check_options(given: Mapping[str, Any], verb: Sequence[str] = ()) -> None:
    """Refuses keyword arguments that no action takes.

    Args:
        given: The keyword arguments.
        verb: Names of the verb's own arguments, for the hint.

    Raises:
        InvalidArgumentError: One is not known; the rule names the nearest that is.
    """
    no_unknown(given, _KNOWN, _HINTS, verb)
