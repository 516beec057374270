"""The actions a client can submit, and what goes with them.

Each action is a frozen value whose type names its result: `EnvStep` is an `Action[CommandResult]`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypedDict, TypeVar

from callsheet.client.demand import Demand
from callsheet.client.outcomes import CommandResult, EnvResetResult, GenerateResult, RewardResult, ToolCallResult

ResultT_co = TypeVar("ResultT_co", covariant=True)


class ActionKind(Enum):
    """The five kinds of action."""

    GENERATE = "generate"
    ENV_RESET = "env_reset"
    ENV_STEP = "env_step"
    TOOL_CALL = "tool_call"
    REWARD = "reward"


class Unservable(Enum):
    """What to do with an action that no registered manager can ever serve."""

    REFUSE = "refuse"
    """Refuse the submit with FailedPreconditionError."""
    WAIT = "wait"
    """Queue it until a manager can serve it or its schedule-to-start time runs out."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """The four deadlines of an action, in seconds; None takes the server's default.

    Attributes:
        schedule_to_start_s: From submit to the start of the first attempt. Then the action is `Expired`.
        start_to_close_s: Execution clock of one attempt, pauses left out. Then it fails as TIMEOUT.
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
    """Keyword arguments that every action takes. See `Options` for what they mean."""

    action_id: str | None
    label: str
    task: str
    demand: Demand | None
    timeouts: Timeouts | None
    retry: Retry | None
    weight: float
    unservable: Unservable
    expected_duration_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What goes with an action of any kind.

    Attributes:
        action_id: The idempotency key, unique in the job; None makes a new one. A submit under the id of an earlier one
            with the same body attaches to it.
        label: Class of work for prediction and reports, for instance "pytest" or "edit".
        task: The task (prompt) it belongs to; siblings of a group share it.
        demand: What it needs; None takes the kind's default.
        timeouts: Its deadlines; None takes the server's defaults.
        retry: Its retries; None takes the server's defaults.
        weight: Weight in the mean completion time; above 0.
        unservable: What to do if no registered manager can ever serve it.
        expected_duration_s: Hint: expected execution time at the fewest units, in seconds.
    """

    action_id: str | None = None
    label: str = ""
    task: str = ""
    demand: Demand | None = None
    timeouts: Timeouts | None = None
    retry: Retry | None = None
    weight: float = 1.0
    unservable: Unservable = Unservable.REFUSE
    expected_duration_s: float | None = None


@dataclass(frozen=True, slots=True)
class SandboxFile:
    """A file to write into a sandbox.

    Attributes:
        path: Relative to the working directory; no "..", not absolute.
        content: The bytes.
        unpack: `content` is a tar archive (plain or gzip) to unpack at `path`.
        mode: Permission bits; None means 0644. Ignored for archives.
    """

    path: str
    content: bytes = field(repr=False)
    unpack: bool = False
    mode: int | None = None


class Language(Enum):
    """What the text of a command is."""

    SHELL = "shell"
    PYTHON = "python"


@dataclass(frozen=True, slots=True)
class Command:
    """A command to run in a sandbox; made by `Command.argv`, `Command.shell` or `Command.python`.

    Attributes:
        program: An argument vector (executed directly) or a text (run by `sh -c` or `python3 -c`, or in a session).
        environment: Variables added to the sandbox's small default environment.
        working_directory: Relative to the sandbox's working directory; empty is that directory itself.
        stdin: Standard input.
        max_output_bytes: Bytes of stdout and of stderr to keep, each (head and tail); None takes the default (1 MiB).
        language: What a text is.
    """

    program: tuple[str, ...] | str
    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = ""
    stdin: bytes = field(default=b"", repr=False)
    max_output_bytes: int | None = None
    language: Language = Language.SHELL

    @classmethod
    def argv(
        cls,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        working_directory: str = "",
        stdin: bytes = b"",
        max_output_bytes: int | None = None,
    ) -> Command:
        """A program and its arguments, executed directly."""
        return cls(arguments, environment or {}, working_directory, stdin, max_output_bytes)

    @classmethod
    def shell(
        cls,
        script: str,
        *,
        environment: Mapping[str, str] | None = None,
        working_directory: str = "",
        stdin: bytes = b"",
        max_output_bytes: int | None = None,
    ) -> Command:
        """A script, run by `sh -c`; in a session by its bash, or sh where there is no bash."""
        return cls(script, environment or {}, working_directory, stdin, max_output_bytes)

    @classmethod
    def python(
        cls,
        code: str,
        *,
        environment: Mapping[str, str] | None = None,
        working_directory: str = "",
        stdin: bytes = b"",
        max_output_bytes: int | None = None,
    ) -> Command:
        """Python code, run by `python3 -c`; in a session by its interpreter, which shows the value of the last line."""
        return cls(code, environment or {}, working_directory, stdin, max_output_bytes, Language.PYTHON)


class Action(Generic[ResultT_co]):
    """The base of all actions; `ResultT_co` is the value of their success."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Generate(Action[GenerateResult]):
    """Runs a language model: tokens in, tokens and log-probabilities out.

    Attributes:
        prompt_token_ids: The prompt, at least one token.
        max_new_tokens: The most new tokens, at least 1.
        temperature: 0 is greedy.
        top_p: Nucleus mass in (0, 1]; 1 is off.
        top_k: Keep the k most likely tokens; 0 means all.
        seed: Seed of this request's own random stream.
        stop_token_ids: Generation stops after any of these tokens.
        model: Name of the hosted model; empty takes any.
    """

    prompt_token_ids: Sequence[int]
    max_new_tokens: int = 16
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int = 0
    stop_token_ids: Sequence[int] = ()
    model: str = "policy"


@dataclass(frozen=True, slots=True)
class EnvReset(Action[EnvResetResult]):
    """Creates a fresh sandbox for the trajectory; one it already has is destroyed first.

    Attributes:
        files: Written before the set-up command.
        set_up: Run once the files are there; a non-zero exit fails the action as ENV.
        disk_mib: Size of the writable file system in MiB; what is used of it counts as memory. None takes half of the
            memory, at most 256.
        max_processes: The most processes; None takes the default (128).
        service: Name of the hosted service that must serve it; empty takes any that has the image.
        image: Name of the root file system it sees, all of it writable; empty is the manager's system, read-only.
        repeat_set_up: Run the set-up command even where files that the same set-up ended with are kept.
        network: Places it can connect to by TCP, through the proxy of HTTPS_PROXY: "host:port" with a name, "*." and
            a name for any below it, or an address; empty reaches nothing.
    """

    files: Sequence[SandboxFile] = ()
    set_up: Command | None = None
    disk_mib: int | None = None
    max_processes: int | None = None
    service: str = ""
    image: str = ""
    repeat_set_up: bool = False
    network: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class EnvStep(Action[CommandResult]):
    """Runs a command in the sandbox of the trajectory. Once started it is never replayed.

    Attributes:
        command: What to run. In a session a text without environment, working directory and stdin.
        files: Written before the command.
        session: Name of the persistent session to run it in: 1 to 64 letters, digits, "-", "_" or "."; empty runs it as
            a program of its own. A session begins with the first step that names it. It keeps directory, variables,
            functions and modules until it ends, for instance by `exit`, or the sandbox does. Shell and Python have
            sessions of their own.
        download: Paths of files to return once the command has ended, at most 32; like those of `files`.
        stream_output: Output is also sent while the command runs, see `Handle.output`.
    """

    command: Command
    files: Sequence[SandboxFile] = ()
    session: str = ""
    download: Sequence[str] = ()
    stream_output: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall(Action[ToolCallResult]):
    """Calls an outside API through a service that a manager hosts.

    Attributes:
        service: Name of the service.
        method: Method or path, as the service defines it.
        arguments: As the service defines them.
    """

    service: str
    method: str
    arguments: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True)
class RewardTests(Action[RewardResult]):
    """Scores by a test suite: the share of tests that pass.

    Attributes:
        command: The runner. "{units}" in an argument becomes the cores granted, and "{report}" a path for a JUnit XML
            report. Without "{report}" the score is 1 for exit code 0, else 0.
        files: Written before the run; the place for pristine test files.
        in_sandbox: In the trajectory's sandbox, beside its files; otherwise in a new one.
        service: Name of the hosted service that must serve it; empty takes any.
    """

    command: Command
    files: Sequence[SandboxFile] = ()
    in_sandbox: bool = False
    service: str = ""


@dataclass(frozen=True, slots=True)
class RewardModel(Action[RewardResult]):
    """Scores by a model.

    Attributes:
        token_ids: The conversation so far, at least one token.
        model: Name of the hosted model; empty takes any.
    """

    token_ids: Sequence[int]
    model: str = "scorer"


_KINDS: dict[type[Action[object]], ActionKind] = {
    Generate: ActionKind.GENERATE,
    EnvReset: ActionKind.ENV_RESET,
    EnvStep: ActionKind.ENV_STEP,
    ToolCall: ActionKind.TOOL_CALL,
    RewardTests: ActionKind.REWARD,
    RewardModel: ActionKind.REWARD,
}


def kind_of(action: Action[object]) -> ActionKind:
    """Returns the kind of an action."""
    return _KINDS[type(action)]


@dataclass(frozen=True, slots=True)
class Submission(Generic[ResultT_co]):
    """An action on its way: what is submitted, for whom and how.

    Attributes:
        job_id: The job it belongs to.
        trajectory_id: The trajectory it belongs to; empty if it has none.
        action_id: The idempotency key, given or made.
        action: What to do.
        options: What goes with it; its `action_id` is the one the caller gave, if any.
    """

    job_id: str
    trajectory_id: str
    action_id: str
    action: Action[ResultT_co]
    options: Options
