"""Values of action.proto, which `make protos` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final


class ActionKind(Enum):
    """The five kinds of action.

    In a submit the kind follows from the payload; elsewhere it is named by this enum.
    """

    GENERATE = "generate"
    """Inference by a language model. May run again after an INFRA failure."""
    ENV_RESET = "env_reset"
    """Creates (or replaces) the sandbox of a trajectory. May run again after an INFRA failure."""
    ENV_STEP = "env_step"
    """Runs a command in the sandbox of a trajectory. Changes state: once started it is never replayed."""
    TOOL_CALL = "tool_call"
    """A call to an outside API behind a quota. Once it may have begun it runs again only if a quota refused it, or
    after an INFRA failure if it is idempotent."""
    REWARD = "reward"
    """Scores a trajectory: a test suite on CPUs or a model. In a trajectory's sandbox it is never replayed once
    started; one in a copy of it changes nothing there, and may run again."""


ACTION_KIND: Final[Mapping[int, ActionKind]] = {
    1: ActionKind.GENERATE,
    2: ActionKind.ENV_RESET,
    3: ActionKind.ENV_STEP,
    4: ActionKind.TOOL_CALL,
    5: ActionKind.REWARD,
}


class LogProbsMode(Enum):
    """The distribution of log-probabilities.

    Trainers that correct for off-policy samples must know it.
    """

    SAMPLED = "sampled"
    """The distribution that tokens were drawn from: after temperature, top_k and top_p. Greedy sampling draws with
    certainty, so each is 0."""
    RAW = "raw"
    """The model's own output at temperature 1, over its whole vocabulary."""


LOG_PROBS_MODE: Final[Mapping[int, LogProbsMode]] = {
    1: LogProbsMode.SAMPLED,
    2: LogProbsMode.RAW,
}


class Hold(Enum):
    """How long the units of a resource stay with their holder."""

    ACTION = "action"
    """Given back when the attempt ends."""
    TRAJECTORY = "trajectory"
    """Kept by the trajectory's sandbox until the trajectory closes. Only env_reset may ask for it."""


HOLD: Final[Mapping[int, Hold]] = {
    1: Hold.ACTION,
    2: Hold.TRAJECTORY,
}


class Unservable(Enum):
    """The treatment of an action that no registered manager can ever serve."""

    REFUSE = "refuse"
    """Refuse the submit with FAILED_PRECONDITION."""
    WAIT = "wait"
    """Queue it until a manager can serve it or its schedule-to-start time runs out."""


UNSERVABLE: Final[Mapping[int, Unservable]] = {
    1: Unservable.REFUSE,
    2: Unservable.WAIT,
}


class Where(Enum):
    """The place of a reward's run."""

    FRESH = "fresh"
    """In a new sandbox that is destroyed afterwards. With an `image` the sandbox begins with the image's files. Else it
    begins with the present files of the trajectory's sandbox, with the same image and set-up below, and `files` replace
    files of the same paths. Without a sandbox of the trajectory it is empty and needs `files`."""
    IN_SANDBOX = "in_sandbox"
    """In the trajectory's sandbox, beside its files."""
    EMPTY = "empty"
    """In a new sandbox without any file of the trajectory, on any node; it is destroyed afterwards. `files` and `image`
    may be empty."""


REWARD_PLACE: Final[Mapping[int, Where]] = {
    1: Where.FRESH,
    2: Where.IN_SANDBOX,
    3: Where.EMPTY,
}


class BackgroundProcesses(Enum):
    """The treatment of processes that earlier actions left in the trajectory's sandbox, while a reward runs there.

    Without one the processes are stopped if nothing inside can undo the stop or look into the reward's processes. Else
    they are killed.
    """

    STOP = "stop"
    """The processes stand still, and go on afterwards."""
    KILL = "kill"
    """The processes are killed before the reward, sessions too."""
    RUN = "run"
    """The processes go on, for tests of a server that the trajectory began. They can change the reward's files, its
    report and its score."""


REWARD_BACKGROUND: Final[Mapping[int, BackgroundProcesses]] = {
    1: BackgroundProcesses.STOP,
    2: BackgroundProcesses.KILL,
    3: BackgroundProcesses.RUN,
}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to sample.

    Nothing is greedy by default, and without a seed each request draws its own.

    Attributes:
        max_new_tokens: The most new tokens, at least 1.
        temperature: 1 is the model's own distribution, 0 is greedy; 0 or more. Without one it is 1.
        top_p: Nucleus mass in (0, 1]; 1 is off, and so is 0 in a message.
        top_k: Keep the k most likely tokens; 0 means all.
        seed: Seed of this request's own random stream: the same seed, prompt and weights give the same tokens. None:
            the engine draws one, which the result reports.
        stop: Generation stops once the text of the new tokens contains any of these: 1 to 64 texts of 1 to 1,024
            characters. An engine without a tokenizer fails the action as ENV `no_tokenizer`.
        stop_token_ids: Generation stops after any of these tokens.
        log_probs_mode: The distribution that the log-probabilities are to be of.
        ignore_eos: Whether the model's own end tokens, from its generation_config.json or config.json, do not end
            generation.
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


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The four deadlines of an action.

    One that is zero or left out takes the server's default; each one must nest in schedule_to_close. Those that count
    from the submit stand still while no scheduler runs.

    Attributes:
        schedule_to_start_s: From submit to the start of the first attempt. Then the action is Expired.
        start_to_close_s: Execution clock of one attempt, which begins with its grant. Then the attempt fails as
            TIMEOUT.
        schedule_to_close_s: From submit to the outcome, retries included. Then the action is Expired.
        heartbeat_s: The longest silence of a running attempt towards the scheduler. Then the attempt fails as INFRA.
    """

    schedule_to_start_s: float | None = None
    start_to_close_s: float | None = None
    schedule_to_close_s: float | None = None
    heartbeat_s: float | None = None


@dataclass(frozen=True, slots=True)
class Retry:
    """When and how often a failed attempt is tried again; a value that is left out takes the server's default.

    Attributes:
        max_attempts: Attempts in all; 1 never retries. None takes the default (3).
        initial_backoff_s: Wait before the second attempt; None takes the default (0.2 s).
        backoff_multiplier: Growth of the wait per further attempt; None takes the default (2.0), otherwise at least 1.
        max_backoff_s: Ceiling of the wait; None takes the default (30 s).
    """

    max_attempts: int | None = None
    initial_backoff_s: float | None = None
    backoff_multiplier: float | None = None
    max_backoff_s: float | None = None


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """A message of a conversation.

    Attributes:
        role: The speaker, for instance "system", "user" or "assistant".
        content: The message's text.
    """

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class ConversationText:
    """A conversation as text; a model's own tokenizer and chat template turn it into tokens.

    Attributes:
        prompt: The question; it becomes a message of the user after `messages`.
        response: The answer; it becomes a message of the assistant after the question.
        messages: The earlier messages, or the whole conversation.
    """

    prompt: str = ""
    response: str = ""
    messages: Sequence[ChatMessage] = ()
