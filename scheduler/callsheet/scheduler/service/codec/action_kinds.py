"""What the service knows of each kind of action: a new kind is one more row of `KIND_RULES`.

Elsewhere in the scheduler it is a member of `core.model.ActionKind` and a prior of `planner.predictors.predictors`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from callsheet.scheduler.core.words.model import CPU, MEMORY, ActionKind, Demand, ResourceDemand, SandboxCopy, SpeedUp
from callsheet.scheduler.core.words.refusals import invalid
from callsheet.scheduler.core.words.registration import BUILD_SERVICE, IMAGE_SERVICE_PREFIX
from callsheet.scheduler.service.codec.rules import (
    at_least,
    blob,
    few,
    identifier,
    known,
    seconds,
    short_text,
    token_ids,
    within,
)
from callsheet.v1 import action_pb2, common_pb2, outcome_pb2
from callsheet.v1.rewards import CommandScorer, command_scorer, may_score_in_copy, scores_in_sandbox

# Rules for rewards: where they run, and what they need there. Returns the stored payloads that an input refers to.

SCORE_PLACEHOLDER = "{score}"
MAX_TEXT = 1 << 20
MAX_MESSAGES = 1024
MIN_TEACHER_TOKENS = 2


def check_reward(reward: action_pb2.RewardInput, trajectory_id: str) -> References:
    """A test suite, a script or a model input."""
    match reward.WhichOneof("scorer"):
        case "test_suite":
            return _check_place("reward.test_suite", reward, reward.test_suite, trajectory_id)
        case "script":
            references = _check_place("reward.script", reward, reward.script, trajectory_id)
            _check_score_file(reward.script)
            return references
        case "model":
            _check_tokens_or_text("reward.model", reward.model)
            return []
        case "teacher":
            _check_teacher(reward.teacher)
            return []
        case "judge":
            if not reward.judge.rubric:
                raise invalid("reward.judge.rubric", "", "must not be empty: it says what to judge by")
            _check_size("reward.judge.rubric", reward.judge.rubric)
            _check_text("reward.judge.text", reward.judge.text)
            return []
        case _:
            raise invalid("reward.scorer", "", "must be one of test_suite, model, script, teacher and judge")


def _check_tokens_or_text(field: str, asked: action_pb2.ModelScoreInput | action_pb2.TeacherInput) -> None:
    if not asked.HasField("text"):
        token_ids(f"{field}.token_ids", asked.token_ids)
        return
    if asked.token_ids:
        raise invalid(f"{field}.text", "", "must be unset beside token ids")
    _check_text(f"{field}.text", asked.text)


def _check_teacher(teacher: action_pb2.TeacherInput) -> None:
    _check_tokens_or_text("reward.teacher", teacher)
    token_ids("reward.teacher.prompt_token_ids", teacher.prompt_token_ids, required=False)
    if teacher.HasField("text"):
        if teacher.prompt_token_ids:
            raise invalid("reward.teacher.prompt_token_ids", teacher.prompt_token_ids[0], "must be unset beside text")
        if not teacher.text.response:
            raise invalid("reward.teacher.text.response", "", "must not be empty: its tokens are looked at")
        if not teacher.text.prompt and not teacher.text.messages:
            raise invalid("reward.teacher.text.prompt", "", "must not be empty where there are no messages")
    elif len(teacher.token_ids) + len(teacher.prompt_token_ids) < MIN_TEACHER_TOKENS:
        rule = "without a prompt there must be two tokens: the first one has no log-probability"
        raise invalid("reward.teacher.token_ids", teacher.token_ids[0], rule)


def _check_text(field: str, text: action_pb2.ConversationText) -> None:
    if not text.prompt and not text.response and not text.messages:
        raise invalid(field, "", "must have a prompt, a response or messages")
    few(f"{field}.messages", len(text.messages), MAX_MESSAGES, "messages")
    for index, message in enumerate(text.messages):
        identifier(f"{field}.messages[{index}].role", message.role)
    _check_size(field, text.prompt, text.response, *(message.content for message in text.messages))


def _check_size(field: str, *texts: str) -> None:
    if (characters := sum(map(len, texts))) > MAX_TEXT:
        raise invalid(field, f"{characters} characters", f"must have at most {MAX_TEXT}")


def _check_place(field: str, reward: action_pb2.RewardInput, runs: CommandScorer, trajectory_id: str) -> References:
    known(f"{field}.where", runs.where, action_pb2.RewardPlace.values())
    known(f"{field}.background", runs.background, action_pb2.RewardBackground.values())
    if runs.background and not scores_in_sandbox(reward):
        name = action_pb2.RewardBackground.Name(runs.background)
        raise invalid(f"{field}.background", name, "must be unset: a fresh sandbox has no processes yet")
    references = check_files(f"{field}.files", runs.files)
    if not runs.HasField("command"):
        raise invalid(f"{field}.command", "", "must be set")
    references += check_command(f"{field}.command", runs.command)
    check_image(f"{field}.image", runs.image)
    if scores_in_sandbox(reward):
        if runs.image:
            raise invalid(f"{field}.image", runs.image, "must be empty in the trajectory's sandbox, which has its own")
    elif not (runs.files or runs.image or trajectory_id or runs.where == action_pb2.REWARD_PLACE_EMPTY):
        rule = "without a trajectory a fresh sandbox is empty: give files or an image, or say EMPTY"
        raise invalid(f"{field}.files", "[]", rule)
    return references


def _check_score_file(script: action_pb2.ScriptScoreInput) -> None:
    command = script.command
    texts = [*command.argv.arguments, command.shell, command.python]
    has_placeholder = any(SCORE_PLACEHOLDER in text for text in texts)
    if script.score_file:
        check_path("reward.script.score_file", script.score_file)
        if has_placeholder:
            rule = f"must be empty where the command has {SCORE_PLACEHOLDER!r}"
            raise invalid("reward.script.score_file", script.score_file, rule)
    elif not has_placeholder:
        rule = f"must name the file with the score, or the command must have {SCORE_PLACEHOLDER!r}"
        raise invalid("reward.script.score_file", "", rule)


# Rules for the payloads of the five kinds. Each function returns the stored payloads that its input refers to.

References = list[common_pb2.PayloadReference]

# Both are less than what the kernel's own limits can hold.
MAX_DISK_MIB = 1 << 30
MAX_PROCESSES = 1_000_000
MAX_DOWNLOADS = 32
MAX_PLACES = 64
MAX_BUILD_ARGUMENTS = 64
MAX_STOP_TEXTS = 64
MAX_STOP_CHARACTERS = 1024
_LOG_PROBS_MODES = frozenset(action_pb2.LogProbsMode.values())
_PLACE = re.compile(r"(?=.{3,270}\Z)[A-Za-z0-9.*_:\[\]-]+:[1-9][0-9]{0,4}")
_SESSION_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_IMAGE = re.compile(r"(?=.{1,240}\Z)[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9][A-Za-z0-9._:-]*)*(@sha256:[0-9a-f]{64})?")


def check_generate(generate: action_pb2.GenerateInput) -> References:
    """A prompt and sane sampling."""
    token_ids("generate.prompt_token_ids", generate.prompt_token_ids)
    sampling = generate.sampling
    at_least("generate.sampling.max_new_tokens", sampling.max_new_tokens, 1)
    at_least("generate.sampling.temperature", sampling.temperature, 0.0)
    within("generate.sampling.top_p", sampling.top_p, 0.0, 1.0)
    at_least("generate.sampling.top_k", sampling.top_k, 0)
    token_ids("generate.sampling.stop_token_ids", sampling.stop_token_ids, required=False)
    few("generate.sampling.stop", len(sampling.stop), MAX_STOP_TEXTS, "texts")
    for index, text in enumerate(sampling.stop):
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            rule = f"must have 1 to {MAX_STOP_CHARACTERS} characters"
            raise invalid(f"generate.sampling.stop[{index}]", f"{len(text)} characters", rule)
    known("generate.sampling.log_probs_mode", sampling.log_probs_mode, _LOG_PROBS_MODES)
    return []


def check_env_reset(env_reset: action_pb2.EnvResetInput) -> References:
    """Files, a set-up command if any, and sizes."""
    references = check_files("env_reset.files", env_reset.files)
    if env_reset.HasField("set_up"):
        references += check_command("env_reset.set_up", env_reset.set_up)
    within("env_reset.disk_mib", env_reset.disk_mib, 0, MAX_DISK_MIB)
    within("env_reset.max_processes", env_reset.max_processes, 0, MAX_PROCESSES)
    check_image("env_reset.image", env_reset.image)
    if env_reset.HasField("build"):
        references += _check_build(env_reset)
    _check_defaults(env_reset.defaults)
    few("env_reset.network", len(env_reset.network), MAX_PLACES, "places")
    for index, place in enumerate(env_reset.network):
        if not _PLACE.fullmatch(place):
            raise invalid(f"env_reset.network[{index}]", place, 'must be "HOST:PORT" in at most 270 characters')
    return references


def _check_build(env_reset: action_pb2.EnvResetInput) -> References:
    if env_reset.image:
        raise invalid("env_reset.image", env_reset.image, "must be empty where build is set")
    build = env_reset.build
    if build.dockerfile:
        check_path("env_reset.build.dockerfile", build.dockerfile)
    _check_environment("env_reset.build.arguments", build.arguments)
    few("env_reset.build.arguments", len(build.arguments), MAX_BUILD_ARGUMENTS, "arguments")
    seconds("env_reset.build.timeout", build.timeout)
    return blob("env_reset.build.context", build.context)


def check_image(field: str, image: str) -> None:
    """The name of a root file system, or none."""
    if image and not _IMAGE.fullmatch(image):
        rule = (
            "must be 1 to 240 letters, digits, '.', '_', '-', ':' or '/', in components that begin with none of them, "
            "and may end with '@sha256:' and 64 hexadecimal digits"
        )
        raise invalid(field, image, rule)


def _check_defaults(defaults: action_pb2.CommandDefaults) -> None:
    _check_environment("env_reset.defaults.environment", defaults.environment)
    if defaults.working_directory:
        check_path("env_reset.defaults.working_directory", defaults.working_directory)
    if defaults.user:
        identifier("env_reset.defaults.user", defaults.user)
    seconds("env_reset.defaults.start_to_close", defaults.start_to_close)
    at_least("env_reset.defaults.max_output_bytes", defaults.max_output_bytes, 0)


def check_env_step(env_step: action_pb2.EnvStepInput) -> References:
    """Files, a command, the session it runs in if any, and paths to download."""
    references = check_files("env_step.files", env_step.files)
    if not env_step.HasField("command"):
        raise invalid("env_step.command", "", "must be set")
    if env_step.session:
        _check_session(env_step)
    few("env_step.download", len(env_step.download), MAX_DOWNLOADS, "paths")
    for index, path in enumerate(env_step.download):
        check_path(f"env_step.download[{index}]", path)
    return references + check_command("env_step.command", env_step.command)


def check_tool_call(tool_call: action_pb2.ToolCallInput) -> References:
    """A method, and arguments if any."""
    identifier("tool_call.method", tool_call.method)
    return blob("tool_call.arguments", tool_call.arguments) if tool_call.HasField("arguments") else []


def check_command(field: str, command: action_pb2.Command) -> References:
    """A program, a safe working directory, and stdin if any."""
    program = command.WhichOneof("program")
    if program is None:
        raise invalid(field, "", "must have exactly one of argv, shell and python")
    if program == "argv" and (not command.argv.arguments or not command.argv.arguments[0]):
        raise invalid(f"{field}.argv", "[]", "must name a program")
    if program != "argv" and not getattr(command, program):
        raise invalid(f"{field}.{program}", "", "must not be empty")
    if "\0" in command.shell or "\0" in command.python or any("\0" in argument for argument in command.argv.arguments):
        raise invalid(f"{field}.{program}", "a NUL", "must not contain NUL")
    _check_environment(f"{field}.environment", command.environment)
    if command.working_directory:
        check_path(f"{field}.working_directory", command.working_directory)
    at_least(f"{field}.max_output_bytes", command.max_output_bytes, 0)
    return blob(f"{field}.stdin", command.stdin) if command.HasField("stdin") else []


def _check_environment(field: str, environment: Mapping[str, str]) -> None:
    for name, value in environment.items():
        if not name or "=" in name or "\0" in name:
            raise invalid(field, name, "names must not be empty nor contain '=' or NUL")
        if "\0" in value:
            raise invalid(f"{field}[{name}]", "a NUL", "must not contain NUL")


def _check_session(env_step: action_pb2.EnvStepInput) -> None:
    command = env_step.command
    if not _SESSION_NAME.fullmatch(env_step.session):
        raise invalid("env_step.session", env_step.session, "must have 1 to 64 letters, digits, '-', '_' or '.'")
    if command.WhichOneof("program") == "argv":
        raise invalid("env_step.command.argv", env_step.session, "must be shell or python in a session")
    for name, is_given in (
        ("working_directory", bool(command.working_directory)),
        ("stdin", command.HasField("stdin")),
    ):
        if is_given:
            raise invalid(f"env_step.command.{name}", env_step.session, "must be unset in a session, which has its own")


def check_files(field: str, files: Iterable[action_pb2.SandboxFile]) -> References:
    """Files with a path and a content."""
    references: References = []
    for index, file in enumerate(files):
        check_path(f"{field}[{index}].path", file.path)
        within(f"{field}[{index}].mode", file.mode, 0, 0o7777)
        references += blob(f"{field}[{index}].content", file.content)
    return references


def check_path(field: str, path: str) -> None:
    """A path in a sandbox: relative to its working directory, or absolute within it."""
    if not path or "\0" in path or ".." in path.split("/"):
        raise invalid(field, path, "must not be empty nor contain '..' or NUL")


_NOTHING = Demand()
_ONE_CORE = Demand((ResourceDemand(CPU, 1, 1),))
_NEW_SANDBOX = Demand((ResourceDemand(CPU, 1, 1), ResourceDemand(MEMORY, 256, 256, SpeedUp(), True)))


def _service(spec: action_pb2.ActionSpec) -> str:
    return short_text("service", spec.service)


@dataclass(frozen=True, slots=True)
class KindRules:
    """What an action of a kind must be, and what it means.

    Attributes:
        kind: The kind.
        check: Checks the payload; returns the stored payloads that it refers to.
        demand: The demand of an action that states none.
        service: Name of the service that an action needs.
        in_sandbox: Whether an action needs its trajectory's sandbox or makes it.
        copy: Whether an action runs in a copy of that sandbox.
        called_once: Whether an action may begin only once.
        result_blobs: All that a result may have stored.
    """

    kind: ActionKind
    check: Callable[[action_pb2.ActionSpec], References]
    demand: Callable[[action_pb2.ActionSpec], Demand] = lambda _: _NOTHING
    service: Callable[[action_pb2.ActionSpec], str] = _service
    in_sandbox: Callable[[action_pb2.ActionSpec], bool] = lambda _: False
    copy: Callable[[action_pb2.ActionSpec], SandboxCopy] = lambda _: SandboxCopy.NEVER
    called_once: Callable[[action_pb2.ActionSpec], bool] = lambda _: False
    result_blobs: Callable[[outcome_pb2.Succeeded], Sequence[common_pb2.Blob]] = lambda _: ()


def _reset_service(spec: action_pb2.ActionSpec) -> str:
    image = spec.env_reset.image
    if spec.env_reset.HasField("build"):
        return _service(spec) or BUILD_SERVICE
    return _service(spec) or (f"{IMAGE_SERVICE_PREFIX}{image}" if image else "")


def _reward_service(spec: action_pb2.ActionSpec) -> str:
    # Two different services score; without a name either could be picked.
    if spec.reward.WhichOneof("scorer") in ("teacher", "judge"):
        return identifier("service", _service(spec))
    runs = command_scorer(spec.reward)
    usual = "scorer" if runs is None else f"{IMAGE_SERVICE_PREFIX}{runs.image}" if runs.image else "test-suite"
    return _service(spec) or usual


def _reward_demand(spec: action_pb2.ActionSpec) -> Demand:
    # A scoring model brings its own compute, as an engine does.
    return _NOTHING if command_scorer(spec.reward) is None else _ONE_CORE


def _reward_copy(spec: action_pb2.ActionSpec) -> SandboxCopy:
    if not spec.trajectory_id or not may_score_in_copy(spec.reward):
        return SandboxCopy.NEVER
    runs = command_scorer(spec.reward)
    return SandboxCopy.IF_ANY if runs is not None and runs.files else SandboxCopy.ALWAYS


def _command_blobs(result: outcome_pb2.CommandResult) -> list[common_pb2.Blob]:
    return [result.stdout, result.stderr, *(file.content for file in result.downloads)]


KIND_RULES: Final[Mapping[str, KindRules]] = {
    "generate": KindRules(
        ActionKind.GENERATE,
        lambda spec: check_generate(spec.generate),
    ),
    "env_reset": KindRules(
        ActionKind.ENV_RESET,
        lambda spec: check_env_reset(spec.env_reset),
        demand=lambda _: _NEW_SANDBOX,
        service=_reset_service,
        in_sandbox=lambda _: True,
        result_blobs=lambda result: _command_blobs(result.env_reset.set_up),
    ),
    "env_step": KindRules(
        ActionKind.ENV_STEP,
        lambda spec: check_env_step(spec.env_step),
        demand=lambda _: _ONE_CORE,
        in_sandbox=lambda _: True,
        result_blobs=lambda result: _command_blobs(result.env_step),
    ),
    "tool_call": KindRules(
        ActionKind.TOOL_CALL,
        lambda spec: check_tool_call(spec.tool_call),
        service=lambda spec: identifier("service", _service(spec)),
        called_once=lambda spec: not spec.tool_call.idempotent,
        result_blobs=lambda result: [result.tool_call.response],
    ),
    "reward": KindRules(
        ActionKind.REWARD,
        lambda spec: check_reward(spec.reward, spec.trajectory_id),
        demand=_reward_demand,
        service=_reward_service,
        in_sandbox=lambda spec: scores_in_sandbox(spec.reward),
        copy=_reward_copy,
        result_blobs=lambda result: _command_blobs(result.reward.command),
    ),
}
"""By the names of their payloads, which are those of their results as well."""
