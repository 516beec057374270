"""The outcome of an action: data, never an exception.

    match await trajectory.env_step("make test"):
        case Succeeded(value=result):
            print(result.exit_code, result.stdout)
        case Failed(kind=FailureKind.INFRA, reason=reason):
            print("not the model's fault:", reason)
        case other:
            print(other)

Why one failed is one word of a closed vocabulary; docs/concepts/outcomes.md says who is at fault for each.

Times are Unix seconds by the scheduler's clock, durations are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, NoReturn, TypeAlias, TypeVar

from callsheet.client.errors import (
    ActionCancelledError,
    ActionExpiredError,
    ActionTimeoutError,
    EnvError,
    InfraError,
    NotSucceededError,
    PolicyError,
    QuotaError,
    ResourceLimitError,
)
from callsheet.v1.outcome_values import FailureKind, Timeline, TimeoutKind, Usage

T = TypeVar("T")
_MAX_LINE = 200
_NO_TIMELINE = Timeline()
_NO_USAGE = Usage()
_ERRORS: dict[FailureKind, type[NotSucceededError]] = {
    FailureKind.POLICY: PolicyError,
    FailureKind.ENV: EnvError,
    FailureKind.INFRA: InfraError,
    FailureKind.TIMEOUT: ActionTimeoutError,
    FailureKind.QUOTA: QuotaError,
    FailureKind.RESOURCE_LIMIT: ResourceLimitError,
    FailureKind.CANCELLED: ActionCancelledError,
}


class Reason(StrEnum):
    """The reasons of `Failed`. Later versions may add some; a client that does not know one gives OTHER."""

    OTHER = "other"
    """Newer than this client, or none; the word is then at the beginning of `Failed.message`."""

    # The scheduler.
    MANAGER_LOST = "manager_lost"
    """The manager that ran the attempt is gone."""
    STATE_LOST = "state_lost"
    """The sandbox that the action needs is gone; a command that had begun is never replayed."""
    DISPATCH_LOST = "dispatch_lost"
    """The manager never got the attempt."""
    START_TO_CLOSE = "start_to_close"
    """The execution clock ran out."""
    HEARTBEAT = "heartbeat"
    """The attempt gave no sign of life."""
    STOPPED_BY_MANAGER = "stopped_by_manager"
    """The manager stopped the attempt unasked."""
    NO_SANDBOX = "no_sandbox"
    """The manager reported a reset without its sandbox."""
    UNSERVABLE = "unservable"
    """No manager that came can ever serve the action."""
    NO_RESULT = "no_result"
    """The manager reported an end without a result."""
    RESULT_DROPPED = "result_dropped"
    """The result was too much to keep until its submit came again after a restart."""

    # Any manager.
    ALREADY_RAN = "already_ran"
    """The action has run in this sandbox before, and its result is no longer kept."""
    EXECUTOR_ERROR = "executor_error"
    """The manager's own code failed."""
    MANAGER_DRAINING = "manager_draining"
    MANAGER_OVERLOADED = "manager_overloaded"
    MANAGER_OUTDATED = "manager_outdated"
    MANAGER_STOPPED = "manager_stopped"
    PAYLOAD_ERROR = "payload_error"
    PAYLOAD_MISSING = "payload_missing"
    PAYLOAD_TOO_LARGE = "payload_too_large"
    PAYLOAD_UNAVAILABLE = "payload_unavailable"
    RESULT_TOO_LARGE = "result_too_large"
    STALE_TOKEN = "stale_token"
    UNSUPPORTED_ACTION = "unsupported_action"
    UNSUPPORTED_KIND = "unsupported_kind"

    # Sandboxes and what runs in them.
    BAD_ARCHIVE = "bad_archive"
    BAD_COMMAND = "bad_command"
    BAD_ENVIRONMENT = "bad_environment"
    BAD_PATH = "bad_path"
    BAD_WORKING_DIRECTORY = "bad_working_directory"
    CANNOT_EXECUTE = "cannot_execute"
    NO_ROOM = "no_room"
    """The kernel had no room for a message to the sandbox, for seconds."""
    NO_SUCH_PROGRAM = "no_such_program"
    """The sandbox has no program of that name."""
    COPY_LOST = "copy_lost"
    """The sandbox of a fresh reward is gone, and the trajectory's is not."""
    COPY_TOO_LARGE = "copy_too_large"
    """The trajectory's sandbox holds more than may be copied for a fresh reward."""
    CORES_UNAVAILABLE = "cores_unavailable"
    CREATIONS_FAILING = "creations_failing"
    CREATIONS_OVERLOADED = "creations_overloaded"
    DISK_FULL = "disk_full"
    IMAGE_BUILD_FAILED = "image_build_failed"
    """A Dockerfile does not build, or not in its time."""
    IMAGE_NOT_FOUND = "image_not_found"
    """No registry and no store of the manager has the image, for its machine at least."""
    IMAGE_UNAVAILABLE = "image_unavailable"
    MEMORY_EXHAUSTED = "memory_exhausted"
    MISSING = "missing"
    """A file is not there."""
    NETWORK_REFUSED = "network_refused"
    NOT_A_FILE = "not_a_file"
    NOT_COPIED = "not_copied"
    """The files of the trajectory's sandbox cannot be copied for a fresh reward."""
    NOT_WRITABLE = "not_writable"
    OUT_OF_MEMORY = "out_of_memory"
    OUTSIDE_SANDBOX = "outside_sandbox"
    """Without isolation, an absolute path leads out of the sandbox's directories."""
    PIDS = "pids"
    """The limit of processes was met."""
    REGISTRY_LIMITED = "registry_limited"
    """The registry of an image was asked too often."""
    SANDBOX_NOT_CREATED = "sandbox_not_created"
    SET_UP_FAILED = "set_up_failed"
    TOO_LARGE = "too_large"
    TOO_LITTLE_MEMORY = "too_little_memory"
    TOO_MANY_SESSIONS = "too_many_sessions"
    UNREADABLE = "unreadable"
    USER_REFUSED = "user_refused"
    """The manager cannot run commands as the user that was asked for."""

    # Rewards.
    BAD_REPORT = "bad_report"
    BAD_MESSAGES = "bad_messages"
    """The model's chat template refuses the messages."""
    NO_REPORT = "no_report"
    NO_TESTS = "no_tests"
    NO_VERDICT = "no_verdict"
    """A judge's answer is empty, cut or refused."""
    NON_FINITE_SCORE = "non_finite_score"
    REWARD_MODEL_GARBAGE = "reward_model_garbage"
    """A model's weights came back and its answer to a fixed input was another, even from their source."""
    REWARD_MODEL_UNAVAILABLE = "reward_model_unavailable"
    """A model cannot be opened, or its weights cannot be read."""
    REWARD_OUT_OF_MEMORY = "reward_out_of_memory"
    """The request takes more memory than there is beside the weights."""
    REWARD_WORKER_DIED = "reward_worker_died"
    """The process that held the model ended."""
    RUNNER_ENDED = "runner_ended"
    """The runner of tests ended in another way than after its tests."""
    RUNNER_KILLED = "runner_killed"
    """A signal ended the runner, and another attempt is to show whether the policy did it."""
    RUNNER_MISSING = "runner_missing"
    """The runner cannot begin: a program or a module of its own is not there."""
    SCRIPT_FAILED = "script_failed"
    """The script of a reward did not exit with 0."""
    SCORE_MALFORMED = "score_malformed"
    """The score file holds no finite number."""
    SCORE_MISSING = "score_missing"
    """The script left no score file, or the judge's answer has no score."""
    SCORER_BUSY = "scorer_busy"
    SCORER_CLOSED = "scorer_closed"
    SCORER_FAILED = "scorer_failed"
    TESTS_MISSING = "tests_missing"
    """Fewer tests ran than there are."""
    TESTS_UNCHECKED = "tests_unchecked"
    """The number of tests was neither declared nor found by a run on the state after reset, so no score counts."""
    WRONG_KIND_OF_MODEL = "wrong_kind_of_model"
    """A model was asked a request of another kind, for instance a teacher for a judgement."""

    # Models.
    DUPLICATE_REQUEST = "duplicate_request"
    ENGINE_BUSY = "engine_busy"
    ENGINE_ERROR = "engine_error"
    ENGINE_FAILED = "engine_failed"
    WEIGHTS_UNPROVED = "weights_unproved"
    """The engine has not proved that it has the weights which were published."""
    INVALID_SAMPLING = "invalid_sampling"
    NO_TOKENIZER = "no_tokenizer"
    """Stop strings were asked for, or text was sent, and the model has no tokenizer."""
    NO_TOKENS = "no_tokens"
    NON_FINITE_LOGITS = "non_finite_logits"
    PROMPT_TOO_LONG = "prompt_too_long"
    SCRIPT_EXHAUSTED = "script_exhausted"
    """The scripted engine has no reply left for the prompt."""
    TOKEN_OUT_OF_VOCABULARY = "token_out_of_vocabulary"

    # Tools.
    BAD_ARGUMENTS = "bad_arguments"
    HOST_REFUSED = "host_refused"
    INSUFFICIENT_QUOTA = "insufficient_quota"
    """A provider makes no call for the key before it is paid."""
    KEY_REFUSED = "key_refused"
    """A provider refuses the key of a tool or a judge."""
    PROVIDER_FAILED = "provider_failed"
    PROVIDER_REFUSED = "provider_refused"
    QUOTA_EXHAUSTED = "quota_exhausted"
    """The quota of a key allows no call before the attempt's deadline."""
    QUOTA_STORE_UNAVAILABLE = "quota_store_unavailable"
    TOOL_DIED = "tool_died"
    TOOL_RAISED = "tool_raised"
    TOOL_TIMEOUT = "tool_timeout"
    TOOL_UNREACHABLE = "tool_unreachable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The common part of all outcomes.

    Attributes:
        job_id: The job of the action.
        action_id: The action.
        timeline: The times of the action's steps.
        usage: The resources that the last attempt used.
        attempts: Number of dispatched attempts.
        manager_id: The manager of the last attempt; empty if no attempt was dispatched.
    """

    job_id: str = ""
    action_id: str = ""
    timeline: Timeline = _NO_TIMELINE
    usage: Usage = _NO_USAGE
    attempts: int = 0
    manager_id: str = ""


@dataclass(frozen=True, slots=True)
class Succeeded(Ended, Generic[T]):
    """The action ran to its end. A command with a non-zero exit code succeeds, too."""

    value: T

    def unwrap(self) -> T:
        """Returns the value."""
        return self.value

    def __str__(self) -> str:
        """One line."""
        return _line("succeeded", _shortened(repr(self.value)), self)


@dataclass(frozen=True, slots=True)
class Failed(Ended, Generic[T]):
    """The action's last attempt failed.

    Attributes:
        kind: The side at fault.
        reason: A word for programs, of a closed vocabulary.
        message: A sentence for people.
        partial: The result up to the failure, for instance the output of a command that timed out.
        timeout: The timeout, where `kind` is TIMEOUT or a heartbeat was missed; else UNSPECIFIED.
        retry_after_s: For QUOTA: the provider's Retry-After; None if it gave none.
    """

    kind: FailureKind
    reason: Reason = Reason.OTHER
    message: str = ""
    partial: T | None = None
    timeout: TimeoutKind = TimeoutKind.UNSPECIFIED
    retry_after_s: float | None = None

    def unwrap(self) -> NoReturn:
        """Raises the NotSucceededError of `kind`, for instance InfraError."""
        raise _ERRORS.get(self.kind, NotSucceededError)(self)

    def __str__(self) -> str:
        """One line: kind, reason, message and action."""
        return _line(f"failed: {self.kind.name} {self.reason}", self.message, self)


@dataclass(frozen=True, slots=True)
class Cancelled(Ended, Generic[T]):
    """The action was cancelled by its client, its trajectory, its group or staleness.

    Attributes:
        reason: The reason, as a sentence.
        partial: The result up to the cancel, for instance partial tokens.
    """

    reason: str = ""
    partial: T | None = None

    def unwrap(self) -> NoReturn:
        """Raises ActionCancelledError."""
        raise ActionCancelledError(self)

    def __str__(self) -> str:
        """One line: the reason, and the action."""
        return _line("cancelled", self.reason, self)


@dataclass(frozen=True, slots=True)
class Expired(Ended):
    """A deadline ran out before the action could finish.

    Attributes:
        timeout: The deadline that ran out.
    """

    timeout: TimeoutKind = TimeoutKind.UNSPECIFIED

    def unwrap(self) -> NoReturn:
        """Raises ActionExpiredError."""
        raise ActionExpiredError(self)

    def __str__(self) -> str:
        """One line: the deadline, and the action."""
        return _line("expired", f"{self.timeout.value} ran out", self)


Outcome: TypeAlias = Succeeded[T] | Failed[T] | Cancelled[T] | Expired


def _line(what: str, message: str, ended: Ended) -> str:
    said = f"{what}: {_shortened(message)}" if message else what
    key = "/".join(filter(None, (ended.job_id, ended.action_id)))
    return f"{said} (action {key})" if key else said


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _MAX_LINE else line[: _MAX_LINE - 3] + "..."
