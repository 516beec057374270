"""Submissions and the kinds of action: to the contract's messages, and results out of them. Pure: uploads are kept.

`KINDS` has a row for each kind: nothing else between the client's values and the contract knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

from callsheet.client.codec.fields import (
    BlobWriter,
    at_least_one,
    is_number,
    numbers,
    positive,
    put,
    put_durations,
    put_list,
    put_same,
)
from callsheet.client.errors import invalid
from callsheet.client.words.actions import (
    Action,
    EnvReset,
    EnvStep,
    Generate,
    Judge,
    RewardModel,
    RewardScript,
    RewardTests,
    Submission,
    TeacherLogProbs,
    ToolCall,
)
from callsheet.client.words.arguments import identifier, instance, items, optional
from callsheet.client.words.commands import (
    Command,
    CommandDefaults,
    ImageBuild,
    Language,
    SandboxFile,
    check_command,
    check_downloads,
    check_path,
    check_scored,
    check_service_method,
    check_session,
    check_text,
)
from callsheet.client.words.options import ActionOptions, Demand, Resource, check_options
from callsheet.client.words.results import Result
from callsheet.v1 import action_pb2, common_pb2
from callsheet.v1.action_values import (
    HOLD,
    LOG_PROBS_MODE,
    REWARD_BACKGROUND,
    REWARD_PLACE,
    UNSERVABLE,
    ActionKind,
    BackgroundProcesses,
    ChatMessage,
    ConversationText,
    LogProbsMode,
    Retry,
    Sampling,
    Timeouts,
    Unservable,
    Where,
)
from callsheet.v1.outcome_values import (
    CommandResult,
    EnvResetResult,
    GenerateResult,
    RewardResult,
    ToolCallResult,
)

_SCORE_PLACEHOLDER = "{score}"
_PLACE = numbers(REWARD_PLACE)
_BACKGROUND = numbers(REWARD_BACKGROUND)
_LOG_PROBS_MODE = numbers(LOG_PROBS_MODE)
Encoder: TypeAlias = Callable[[action_pb2.ActionSpec, Any, BlobWriter], None]
"""Puts an action into the message of a submit."""


class Kind(NamedTuple):
    """A kind of action in the contract.

    Attributes:
        encoders: By the classes of its actions.
        decode: Makes the value of a success of its message, and of a function that reads its blobs.
    """

    encoders: Mapping[type[Action[Any]], Encoder]
    decode: Callable[[Any, Callable[[common_pb2.Blob], bytes]], Result]


def _put_generate(spec: action_pb2.ActionSpec, action: Generate, blobs: BlobWriter) -> None:
    given = instance("sampling", action.sampling, Sampling, "a Sampling, for instance Sampling(temperature=0.7)")
    where = "generate.sampling"
    if not (is_number(given.top_p) and 0 < given.top_p <= 1):
        raise invalid(f"{where}.top_p", given.top_p, "above 0 and at most 1")
    if not is_number(given.max_new_tokens) or given.max_new_tokens < 1:
        raise invalid(f"{where}.max_new_tokens", given.max_new_tokens, "at least 1")
    mode = instance(f"{where}.log_probs_mode", given.log_probs_mode, LogProbsMode, "a LogProbsMode")
    put(spec, "", service=action.model)
    put_list(spec.generate, "generate", "prompt_token_ids", action.prompt_token_ids)
    sampling = spec.generate.sampling
    put_same(sampling, where, given, but=("log_probs_mode",))
    if mode is not LogProbsMode.SAMPLED:
        sampling.log_probs_mode = _LOG_PROBS_MODE[mode]


def _put_env_reset(spec: action_pb2.ActionSpec, action: EnvReset, blobs: BlobWriter) -> None:
    message = spec.env_reset
    message.SetInParent()
    put(spec, "", service=action.service)
    _put_files(message.files, "env_reset", action.files, blobs)
    if action.set_up is not None:
        _put_command(message.set_up, "env_reset.set_up", action.set_up, blobs)
    put_same(message, "env_reset", action, but=("service",))
    put(message, "env_reset", guaranteed_memory=action.memory == "guaranteed")
    if action.memory not in {None, "guaranteed"}:
        raise invalid("env_reset.memory", action.memory, "None or 'guaranteed'; a demand says how much")
    defaults = optional("env_reset.defaults", action.defaults, CommandDefaults, "a CommandDefaults")
    if defaults is not None:
        _put_defaults(message.defaults, defaults)
    build = optional("env_reset.build", action.build, ImageBuild, "an ImageBuild")
    if build is not None:
        _put_build(message.build, build, blobs)


def _put_build(message: action_pb2.ImageBuild, build: ImageBuild, blobs: BlobWriter) -> None:
    where = "env_reset.build"
    message.context.CopyFrom(blobs.blob(f"{where}.context", build.context))
    put_same(message, where, build)


def _put_defaults(message: action_pb2.CommandDefaults, defaults: CommandDefaults) -> None:
    put_same(message, "env_reset.defaults", defaults)


def _put_env_step(spec: action_pb2.ActionSpec, action: EnvStep, blobs: BlobWriter) -> None:
    _put_files(spec.env_step.files, "env_step", action.files, blobs)
    _put_command(spec.env_step.command, "env_step.command", action.command, blobs)
    check_session("env_step.session", action.session)
    check_downloads("env_step.download", items("env_step.download", action.download, str, "text"))
    put_same(spec.env_step, "env_step", action)


def _put_tool_call(spec: action_pb2.ActionSpec, action: ToolCall, blobs: BlobWriter) -> None:
    put(spec, "", service=action.service)
    check_service_method("tool_call.method", action.method)
    put_same(spec.tool_call, "tool_call", action)
    spec.tool_call.arguments.CopyFrom(blobs.blob("tool_call.arguments", action.arguments))


def _put_reward_tests(spec: action_pb2.ActionSpec, action: RewardTests, blobs: BlobWriter) -> None:
    _put_reward_in_sandbox(spec, spec.reward.test_suite, "reward.test_suite", action, blobs)
    put(spec.reward.test_suite, "reward.test_suite", tests=action.tests)


def _put_reward_script(spec: action_pb2.ActionSpec, action: RewardScript, blobs: BlobWriter) -> None:
    message = spec.reward.script
    where = "reward.script"
    put(message, where, score_file=action.score_file)
    _put_reward_in_sandbox(spec, message, where, action, blobs)
    texts = [*message.command.argv.arguments, message.command.shell, message.command.python]
    if bool(action.score_file) == any(_SCORE_PLACEHOLDER in text for text in texts):
        rule = f"the script's score file, or else the command has {_SCORE_PLACEHOLDER!r}: one of the two"
        raise invalid(f"{where}.score_file", action.score_file, rule)


def _put_reward_in_sandbox(
    spec: action_pb2.ActionSpec,
    message: action_pb2.TestSuiteInput | action_pb2.ScriptScoreInput,
    at: str,
    action: RewardTests | RewardScript,
    blobs: BlobWriter,
) -> None:
    put(spec, "", service=action.service)
    _put_files(message.files, at, action.files, blobs)
    put(message, at, image=action.image)
    where = instance("where", action.where, Where, "a Where: Where.FRESH, Where.IN_SANDBOX or Where.EMPTY")
    if where is Where.IN_SANDBOX and not spec.trajectory_id:
        raise invalid("where", where.name, "a job has no sandbox: ask the trajectory for this reward")
    if where is Where.FRESH and not (action.files or action.image or spec.trajectory_id):
        rule = "a job's fresh sandbox is empty: give files= or image=, or ask the trajectory for this reward"
        raise invalid("where", where.name, rule)
    message.where = _PLACE[where]
    rule = "a BackgroundProcesses, for instance BackgroundProcesses.STOP"
    background = optional("background", action.background, BackgroundProcesses, rule)
    if background is not None:
        if where is not Where.IN_SANDBOX:
            raise invalid("background", background.name, "None: a fresh sandbox has no processes yet")
        message.background = _BACKGROUND[background]
    _put_command(message.command, f"{at}.command", action.command, blobs)


def _put_reward_model(spec: action_pb2.ActionSpec, action: RewardModel, blobs: BlobWriter) -> None:
    put(spec, "", service=action.model)
    put_list(spec.reward.model, "reward.model", "token_ids", action.token_ids)
    spec.reward.model.SetInParent()
    _put_text(spec.reward.model, "reward.model", action.text)


def _put_teacher(spec: action_pb2.ActionSpec, action: TeacherLogProbs, blobs: BlobWriter) -> None:
    put(spec, "", service=action.model)
    teacher = spec.reward.teacher
    put_list(teacher, "reward.teacher", "token_ids", action.token_ids)
    put_list(teacher, "reward.teacher", "prompt_token_ids", action.prompt_token_ids)
    teacher.SetInParent()
    _put_text(teacher, "reward.teacher", action.text)


def _put_judge(spec: action_pb2.ActionSpec, action: Judge, blobs: BlobWriter) -> None:
    put(spec, "", service=action.model)
    put(spec.reward.judge, "reward.judge", rubric=action.rubric)
    _put_text(spec.reward.judge, "reward.judge", action.text)


def _put_text(
    message: action_pb2.ModelScoreInput | action_pb2.TeacherInput | action_pb2.JudgeInput,
    where: str,
    given: ConversationText | None,
) -> None:
    rule = 'a ConversationText, for instance ConversationText(prompt="1 + 1?", response="2")'
    text = optional(f"{where}.text", given, ConversationText, rule)
    if text is not None:
        message.text.SetInParent()
        put(message.text, f"{where}.text", prompt=text.prompt, response=text.response)
        messages = items(f"{where}.text.messages", text.messages, ChatMessage, "a ChatMessage")
        check_scored(f"{where}.text", [text.prompt, text.response, *(each.content for each in messages)])
        for index, each in enumerate(messages):
            put(message.text.messages.add(), f"{where}.text.messages[{index}]", role=each.role, content=each.content)


def _put_files(files: Any, where: str, given: Iterable[SandboxFile], blobs: BlobWriter) -> None:
    for index, file in enumerate(items(f"{where}.files", given, SandboxFile, "a SandboxFile")):
        at = f"{where}.files[{index}]"
        check_path(f"{at}.path", file.path)
        message = files.add(content=blobs.blob(f"{at}.content", file.content))
        put(message, at, path=file.path, unpack=file.unpack, mode=file.mode or 0)


def _put_command(message: action_pb2.Command, where: str, command: Command, blobs: BlobWriter) -> None:
    instance(f"{where}.language", command.language, Language, "a Language")
    check_command(where, command)
    if isinstance(command.program, str):
        if command.language is Language.PYTHON:
            put(message, where, python=command.program)
        else:
            put(message, where, shell=command.program)
    else:
        message.argv.SetInParent()
        put_list(message.argv, f"{where}.argv", "arguments", command.program)
    put_same(message, where, command)
    if command.stdin:
        message.stdin.CopyFrom(blobs.blob(f"{where}.stdin", command.stdin))


KINDS: Mapping[ActionKind, Kind] = {
    ActionKind.GENERATE: Kind({Generate: _put_generate}, lambda message, _: GenerateResult.from_message(message)),
    ActionKind.ENV_RESET: Kind({EnvReset: _put_env_reset}, EnvResetResult.from_message),
    ActionKind.ENV_STEP: Kind({EnvStep: _put_env_step}, CommandResult.from_message),
    ActionKind.TOOL_CALL: Kind({ToolCall: _put_tool_call}, ToolCallResult.from_message),
    ActionKind.REWARD: Kind(
        {
            RewardTests: _put_reward_tests,
            RewardScript: _put_reward_script,
            RewardModel: _put_reward_model,
            TeacherLogProbs: _put_teacher,
            Judge: _put_judge,
        },
        RewardResult.from_message,
    ),
}
"""A kind's value is the name of its field in the contract's messages."""
_ENCODERS = {action: encoder for kind in KINDS.values() for action, encoder in kind.encoders.items()}
_HOLD = numbers(HOLD)
_UNSERVABLE = numbers(UNSERVABLE)


def encode_submission(submission: Submission[Any]) -> tuple[action_pb2.ActionSpec, dict[str, bytes]]:
    """Returns the message of a submission, and the contents it refers to by their SHA-256.

    Raises:
        InvalidArgumentError: A value that the contract cannot carry or that breaks one of its static rules.
    """
    blobs = BlobWriter()
    check_options(submission.options, tuple(getattr(submission.action, "__dataclass_fields__", ())))
    spec = action_pb2.ActionSpec()
    action_id = identifier("action_id", submission.action_id)
    put(spec, "", job_id=submission.job_id, action_id=action_id, trajectory_id=submission.trajectory_id)
    encoder = _ENCODERS.get(type(submission.action))
    if encoder is None:
        raise invalid("action", f"{submission.action!r}", f"one of {', '.join(each.__name__ for each in _ENCODERS)}")
    _put_options(spec, submission.options)
    encoder(spec, submission.action, blobs)
    return spec, blobs.uploads


def content_bytes(action: Action[Any]) -> int:
    """Returns the bytes of file contents and arguments that an action carries."""
    if isinstance(action, ToolCall):
        return _size(action.arguments)
    files = getattr(action, "files", None)
    if not isinstance(files, list | tuple):
        return 0
    return sum(_size(file.content) for file in files if isinstance(file, SandboxFile))


def _size(content: object) -> int:
    return len(content) if isinstance(content, bytes) else 0


def _put_options(spec: action_pb2.ActionSpec, options: ActionOptions) -> None:
    check_text("label", options.get("label", ""))
    check_text("task", options.get("task", ""))
    put(spec, "", label=options.get("label", ""), task=options.get("task", ""))
    demand = optional("demand", options.get("demand"), Demand, "a Demand, for instance Demand(cpu=2)")
    if demand is not None:
        _put_demand(spec.demand, demand)
    timeouts = optional("timeouts", options.get("timeouts"), Timeouts, "a Timeouts, for instance Timeouts(...)")
    if timeouts is not None:
        put_durations(
            spec.timeouts,
            "timeouts",
            schedule_to_start=timeouts.schedule_to_start_s,
            start_to_close=timeouts.start_to_close_s,
            schedule_to_close=timeouts.schedule_to_close_s,
            heartbeat=timeouts.heartbeat_s,
        )
    retry = optional("retry", options.get("retry"), Retry, "a Retry, for instance Retry(max_attempts=1)")
    if retry is not None:
        _put_retry(spec.retry, retry)
    weight = positive("weight", options.get("weight", 1.0))
    if weight != 1.0:
        spec.weight = weight
    unservable = instance("unservable", options.get("unservable", Unservable.REFUSE), Unservable, "an Unservable")
    if unservable is not Unservable.REFUSE:
        spec.unservable = _UNSERVABLE[unservable]
    if (expected_s := options.get("expected_duration_s")) is not None:
        put_durations(spec, "", expected_duration=expected_s)
    if (traceparent := options.get("traceparent")) is not None:
        put(spec, "", traceparent=traceparent)


def _put_demand(message: action_pb2.Demand, demand: Demand) -> None:
    message.SetInParent()  # an empty demand differs from none
    for resource in demand.resources:
        entry = message.resources.add(hold=_HOLD[resource.hold])
        where = f"demand.{resource.name}"
        put(entry, where, resource=resource.name)
        entry.min_milli_units, entry.max_milli_units = resource.min_milli_units, resource.max_milli_units
        _put_speed_up(entry, where, resource)


def _put_speed_up(entry: action_pb2.ResourceDemand, where: str, resource: Resource) -> None:
    if resource.amdahl_fraction is not None:
        put(entry.speed_up, where, amdahl_fraction=resource.amdahl_fraction)
    for index, (units, gain) in enumerate(resource.speed_up):
        put(entry.speed_up.table.points.add(), f"{where}.speed_up[{index}]", units=units, speed_up=gain)


def _put_retry(message: action_pb2.RetryPolicy, retry: Retry) -> None:
    put(message, "retry", max_attempts=at_least_one("retry.max_attempts", retry.max_attempts))
    put_durations(message, "retry", initial_backoff=retry.initial_backoff_s, max_backoff=retry.max_backoff_s)
    if retry.backoff_multiplier is not None:
        if not (is_number(retry.backoff_multiplier) and retry.backoff_multiplier >= 1):
            raise invalid("retry.backoff_multiplier", retry.backoff_multiplier, "at least 1, or None for the default")
        message.backoff_multiplier = retry.backoff_multiplier
