"""The actions a client can submit.

Each action is a frozen value whose type names its result: `EnvStep` is an `Action[CommandResult]`. A new kind is a
class here, its result in `results` and a row of `kinds.KINDS`; users get a verb in `verbs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Literal, TypedDict, TypeVar, Unpack

from callsheet.client.words.commands import (
    Command,
    CommandDefaults,
    CommandLike,
    FilesLike,
    ImageBuild,
    SandboxFile,
    as_command,
    as_files,
    with_stdin,
)
from callsheet.client.words.options import ActionOptions
from callsheet.v1.action_values import ActionKind, BackgroundProcesses, ConversationText, Sampling, Where
from callsheet.v1.outcome_values import CommandResult, EnvResetResult, GenerateResult, RewardResult, ToolCallResult

ResultT_co = TypeVar("ResultT_co", covariant=True)

_DEFAULT_SAMPLING = Sampling()


def _set_fields(action: Action[Any], *values: object) -> None:
    """Sets the fields of a frozen value under construction, in their order."""
    names: tuple[str, ...] = action.__slots__
    for name, value in zip(names, values, strict=True):
        object.__setattr__(action, name, value)


class Action(Generic[ResultT_co]):
    """The base of all actions; `ResultT_co` is the value of their success.

    Attributes:
        kind: The kind by which the scheduler plans the action.
    """

    __slots__ = ()
    kind: ClassVar[ActionKind]


@dataclass(frozen=True, slots=True)
class Generate(Action[GenerateResult]):
    """Runs a language model: tokens in, tokens and log-probabilities out.

    Attributes:
        prompt_token_ids: The prompt, at least one token.
        sampling: Parameters of the sampling.
        model: Name of the hosted model; empty takes any.
    """

    kind = ActionKind.GENERATE
    prompt_token_ids: Sequence[int]
    sampling: Sampling = _DEFAULT_SAMPLING
    model: str = "policy"


class EnvResetFields(TypedDict, total=False):
    """Keyword arguments of `EnvReset`: its fields of these names."""

    disk_mib: int | None
    max_processes: int | None
    service: str
    image: str
    repeat_set_up: bool
    network: Sequence[str]
    defaults: CommandDefaults | None
    build: ImageBuild | None
    memory: Literal["guaranteed"] | None


class EnvResetOptions(EnvResetFields, ActionOptions, total=False):
    """Keyword arguments of the verb `env_reset`: the fields of `EnvReset`, and those of every action."""

    files: FilesLike
    set_up: CommandLike | None


@dataclass(frozen=True, slots=True, init=False)
class EnvReset(Action[EnvResetResult]):
    """Creates a fresh sandbox for the trajectory; the trajectory's earlier sandbox is destroyed first.

    Attributes:
        files: Files that are written before the set-up command.
        set_up: Command that runs after the files are written; a non-zero exit fails the action as ENV.
        disk_mib: Size of the writable file system in MiB; its used part counts as memory. None takes half of the
            memory, at most 256.
        max_processes: The most processes; None takes the default (128).
        service: Name of the hosted service that must serve the sandbox; empty takes any that has the image.
        image: Name of the sandbox's root file system, writable as a whole. The image is in the managers' stores, or in
            a registry that they may pull from. Empty takes the manager's system, read-only.
        repeat_set_up: Run the set-up command even where the files of an earlier run of the same set-up are kept.
        network: Places that the sandbox can connect to by TCP: "host:port" with a name, with `*.` before a name for any
            name below, or with an address. Empty reaches nothing. A port of 127.0.0.1 is one of the manager's machine.
            The sandbox reaches all other places through the proxy of HTTPS_PROXY and HTTP_PROXY.
        defaults: Defaults for the sandbox's commands.
        build: A Dockerfile to build the image of, in place of `image`.
        memory: "guaranteed" keeps the whole memory of the demand for the sandbox's life. By default the sandbox has the
            whole memory while something runs in it, and between its actions the memory that it holds. So an action may
            wait for memory.
    """

    kind = ActionKind.ENV_RESET
    files: Sequence[SandboxFile] = ()
    set_up: Command | None = None
    disk_mib: int | None = None
    max_processes: int | None = None
    service: str = ""
    image: str = ""
    repeat_set_up: bool = False
    network: Sequence[str] = ()
    defaults: CommandDefaults | None = None
    build: ImageBuild | None = None
    memory: Literal["guaranteed"] | None = None

    def __init__(
        self, files: FilesLike = (), set_up: CommandLike | None = None, **given: Unpack[EnvResetFields]
    ) -> None:
        """Takes a command as people type it."""
        values = {each.name: given.pop(each.name, each.default) for each in fields(EnvReset)}  # type: ignore[misc]
        if given:
            raise TypeError(f"EnvReset() got an unexpected keyword argument {next(iter(given))!r}")
        values["set_up"] = None if set_up is None else as_command(set_up, "set_up")
        _set_fields(self, *(values | {"files": as_files(files)}).values())


@dataclass(frozen=True, slots=True, init=False)
class EnvStep(Action[CommandResult]):
    """Runs a command in the sandbox of the trajectory. A started command never runs again.

    Attributes:
        command: The command. In a session a text, without working directory and stdin.
        files: Files that are written before the command.
        session: Name of the persistent session that runs the command: 1 to 64 letters, digits, "-", "_" or ".". Empty
            runs a program of its own. A session begins with the first step that names it. It keeps directory,
            variables, functions and modules until it ends, for instance by `exit`, or the sandbox ends. Shell and
            Python have sessions of their own.
        download: Paths of files to return after the command's end, at most 32, as paths of `files`.
        stream_output: Send output also while the command runs; see `ActionHandle.output`.
    """

    kind = ActionKind.ENV_STEP
    command: Command
    files: Sequence[SandboxFile] = ()
    session: str = ""
    download: Sequence[str] = ()
    stream_output: bool = False

    def __init__(
        self,
        command: CommandLike,
        *,
        files: FilesLike = (),
        stdin: str | bytes = b"",
        session: str = "",
        download: Sequence[str] = (),
        stream_output: bool = False,
    ) -> None:
        """Takes a command as people type it."""
        program = with_stdin(as_command(command, "command"), stdin)
        _set_fields(self, program, as_files(files), session, download, stream_output)


@dataclass(frozen=True, slots=True)
class ToolCall(Action[ToolCallResult]):
    """Calls an outside API through a service that a manager hosts.

    Attributes:
        service: Name of the service.
        method: Method or path, as the service defines it.
        arguments: Arguments, as the service defines them.
        idempotent: A second call does no harm, so a call that may have begun may be attempted again. By default a call
            is made once. Only a call that certainly did not begin, or that a quota refused, is tried again.
    """

    kind = ActionKind.TOOL_CALL
    service: str
    method: str
    arguments: bytes = field(default=b"", repr=False)
    idempotent: bool = False


@dataclass(frozen=True, slots=True, init=False)
class RewardTests(Action[RewardResult]):
    """Scores by a test suite: the share of tests that pass.

    Attributes:
        command: The runner. "{units}" in an argument becomes the cores granted, and "{report}" a path for a JUnit XML
            report. Without "{report}" the score is 1 for exit code 0, else 0; if a signal or its time ended the runner,
            there is none.
        where: The place of the run; see `Where`.
        files: Files that are written before the run, such as pristine tests. They replace files and links of their
            paths.
        image: Root file system of a fresh sandbox; see `EnvReset.image`.
        service: Name of the hosted service that must serve the reward; empty takes any.
        background: In the trajectory's sandbox, the treatment of processes that run there already.
        tests: Number of tests that run, skipped tests left out. A report of fewer tests does not count, and further
            tests add nothing to the score. 0 takes the number that the same run has in the trajectory's state after its
            reset.
    """

    kind = ActionKind.REWARD
    command: Command
    where: Where = Where.FRESH
    files: Sequence[SandboxFile] = ()
    image: str = ""
    service: str = ""
    background: BackgroundProcesses | None = None
    tests: int = 0

    def __init__(
        self,
        command: CommandLike,
        *,
        where: Where = Where.FRESH,
        files: FilesLike = (),
        image: str = "",
        service: str = "",
        background: BackgroundProcesses | None = None,
        tests: int = 0,
    ) -> None:
        """Takes a command as people type it."""
        _set_fields(self, as_command(command, "command"), where, as_files(files), image, service, background, tests)


@dataclass(frozen=True, slots=True, init=False)
class RewardScript(Action[RewardResult]):
    """Scores by a script that writes the score to a file.

    The file holds a number as text, a JSON number, or a JSON object of numbers. In an object "score" (or "reward", or
    the only number) is the score, and all numbers are components. A missing file fails the action as ENV
    `score_missing`, and a file without a finite number as ENV `score_malformed`; neither is ever a score of 0.

    Attributes:
        command: The script. "{units}" in an argument becomes the cores granted, and "{score}" a path for the score that
            nothing else in the sandbox knows.
        where: The place of the run; see `Where`.
        score_file: Path of the file with the score; empty where the command has "{score}". An earlier file of that path
            is removed before the run.
        files: Files that are written before the run, as for `RewardTests`.
        image: Root file system of a fresh sandbox; see `EnvReset.image`.
        service: Name of the hosted service that must serve the reward; empty takes any.
        background: In the trajectory's sandbox, the treatment of processes that run there already.
    """

    kind = ActionKind.REWARD
    command: Command
    where: Where = Where.FRESH
    score_file: str = ""
    files: Sequence[SandboxFile] = ()
    image: str = ""
    service: str = ""
    background: BackgroundProcesses | None = None

    def __init__(
        self,
        command: CommandLike,
        *,
        where: Where = Where.FRESH,
        score_file: str = "",
        files: FilesLike = (),
        image: str = "",
        service: str = "",
        background: BackgroundProcesses | None = None,
    ) -> None:
        """Takes a command as people type it."""
        written = as_files(files)
        _set_fields(self, as_command(command, "command"), where, score_file, written, image, service, background)


@dataclass(frozen=True, slots=True)
class RewardModel(Action[RewardResult]):
    """Scores by a model.

    Attributes:
        token_ids: The conversation so far, at least one token; empty where `text` is given.
        model: Name of the hosted model; empty takes any.
        text: The conversation as text instead, for models with a tokenizer.
    """

    kind = ActionKind.REWARD
    token_ids: Sequence[int] = ()
    model: str = "scorer"
    text: ConversationText | None = None


@dataclass(frozen=True, slots=True)
class TeacherLogProbs(Action[RewardResult]):
    """Asks a teacher model for the log-probabilities of tokens, given the tokens before them.

    Attributes:
        model: Name of the hosted model.
        token_ids: The tokens to look at; empty where `text` is given. Without a prompt the first token has no
            log-probability.
        prompt_token_ids: The tokens before `token_ids`.
        text: A conversation as text instead; the teacher looks at its `response`.
    """

    kind = ActionKind.REWARD
    model: str
    token_ids: Sequence[int] = ()
    prompt_token_ids: Sequence[int] = ()
    text: ConversationText | None = None


@dataclass(frozen=True, slots=True)
class Judge(Action[RewardResult]):
    """Asks a generative model for a judgement by a rubric; the model answers with a text, decoded greedily.

    The score is read from the answer. A whole answer without a score fails the action as ENV `score_missing`. An empty,
    cut or refused answer fails it as INFRA `no_verdict`. Neither is ever a score of 0.

    Attributes:
        model: Name of the hosted model.
        rubric: The criteria, and the form of the score.
        text: The conversation to judge.
    """

    kind = ActionKind.REWARD
    model: str
    rubric: str
    text: ConversationText


@dataclass(frozen=True, slots=True)
class Submission(Generic[ResultT_co]):
    """An action on its way to the scheduler, with its ids and options.

    Attributes:
        job_id: The action's job.
        trajectory_id: The action's trajectory; empty if it has none.
        action_id: The idempotency key, of the caller or of the client.
        action: The action.
        options: The caller's keyword arguments.
    """

    job_id: str
    trajectory_id: str
    action_id: str
    action: Action[ResultT_co]
    options: ActionOptions
