"""Submissions and the kinds of action: to the contract's messages, and results out of them. Pure: uploads are kept.

`KINDS` has a row for each kind: nothing else between the client's values and the contract knows them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeAlias

from callsheet.client.codec.fields import BlobWriter, numbers, positive, put, put_durations, put_list, put_same
from callsheet.client.errors import broken_rule, invalid
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
from callsheet.client.words.arguments import identifier, instance
from callsheet.client.words.commands import Command, Language, SandboxFile
from callsheet.client.words.options import Demand, Resource, check_options
from callsheet.client.words.results import Result
from callsheet.v1 import action_pb2, common_pb2
from callsheet.v1.action_values import HOLD, ActionKind, Retry, Timeouts, Unservable
from callsheet.v1.outcome_values import CommandResult, EnvResetResult, GenerateResult, RewardResult, ToolCallResult
from callsheet.v1.refusals import RefusedError
from callsheet.v1.rules.actions import check_action

Encoder: TypeAlias = Callable[[action_pb2.ActionSpec, Any, BlobWriter], None]
"""Puts an action into the message of a submit."""
_HOLD = numbers(HOLD)
_WITHOUT_NONE = frozenset({"label", "task", "unservable", "weight"})
"""Options that None leaves out because it is their default."""


class Kind(NamedTuple):
    """A kind of action in the contract.

    Attributes:
        encoders: By the classes of its actions.
        decode: Makes the value of a success of its message, and of a function that reads its blobs.
    """

    encoders: Mapping[type[Action[Any]], Encoder]
    decode: Callable[[Any, Callable[[common_pb2.Blob], bytes]], Result]


def _put_generate(spec: action_pb2.ActionSpec, action: Generate, blobs: BlobWriter) -> None:
    put(spec, "", service=action.model)
    put_same(spec.generate, "generate", action)
    if not spec.generate.sampling.top_p:
        raise invalid("generate.sampling.top_p", action.sampling.top_p, "above 0 and at most 1")


def _put_env_reset(spec: action_pb2.ActionSpec, action: EnvReset, blobs: BlobWriter) -> None:
    put(spec, "", service=action.service)
    if action.memory not in {None, "guaranteed"}:
        raise invalid("env_reset.memory", action.memory, "None or 'guaranteed'; a demand says how much")
    spec.env_reset.guaranteed_memory = action.memory == "guaranteed"
    put_same(spec.env_reset, "env_reset", action, blobs, ("set_up",))
    if action.set_up is not None:
        _put_command(spec.env_reset.set_up, "env_reset.set_up", action.set_up, blobs)


def _put_env_step(spec: action_pb2.ActionSpec, action: EnvStep, blobs: BlobWriter) -> None:
    put_same(spec.env_step, "env_step", action, blobs, ("command",))
    _put_command(spec.env_step.command, "env_step.command", action.command, blobs)


def _put_tool_call(spec: action_pb2.ActionSpec, action: ToolCall, blobs: BlobWriter) -> None:
    put(spec, "", service=action.service)
    put_same(spec.tool_call, "tool_call", action, blobs)


def _put_reward(scorer: str, spec: action_pb2.ActionSpec, action: Any, blobs: BlobWriter) -> None:
    """Puts a reward by a model, a teacher or a judge."""
    message = getattr(spec.reward, scorer)
    message.SetInParent()
    put(spec, "", service=action.model)
    put_same(message, f"reward.{scorer}", action, blobs)


def _put_run(scorer: str, spec: action_pb2.ActionSpec, action: RewardTests | RewardScript, blobs: BlobWriter) -> None:
    """Puts a reward that runs a command."""
    message = getattr(spec.reward, scorer)
    put(spec, "", service=action.service)
    put_same(message, f"reward.{scorer}", action, blobs, ("command",))
    message.where = message.where or action_pb2.REWARD_PLACE_FRESH
    _put_command(message.command, f"reward.{scorer}.command", action.command, blobs)


def _put_command(message: action_pb2.Command, where: str, command: Command, blobs: BlobWriter) -> None:
    language = instance(f"{where}.language", command.language, Language, "a Language")
    if isinstance(command.program, str):
        put(message, where, **{language.value: command.program})
    else:
        message.argv.SetInParent()
        put_list(message.argv, f"{where}.argv", "arguments", command.program)
    put_same(message, where, command, blobs, () if command.stdin else ("stdin",))


KINDS: Mapping[ActionKind, Kind] = {
    ActionKind.GENERATE: Kind({Generate: _put_generate}, lambda message, _: GenerateResult.from_message(message)),
    ActionKind.ENV_RESET: Kind({EnvReset: _put_env_reset}, EnvResetResult.from_message),
    ActionKind.ENV_STEP: Kind({EnvStep: _put_env_step}, CommandResult.from_message),
    ActionKind.TOOL_CALL: Kind({ToolCall: _put_tool_call}, ToolCallResult.from_message),
    ActionKind.REWARD: Kind(
        {
            RewardTests: partial(_put_run, "test_suite"),
            RewardScript: partial(_put_run, "script"),
            RewardModel: partial(_put_reward, "model"),
            TeacherLogProbs: partial(_put_reward, "teacher"),
            Judge: partial(_put_reward, "judge"),
        },
        RewardResult.from_message,
    ),
}
"""A kind's value is the name of its field in the contract's messages."""
_ENCODERS = {action: encoder for kind in KINDS.values() for action, encoder in kind.encoders.items()}


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
    for name, given in submission.options.items():
        if name in _OPTIONS and (given is not None or name in _WITHOUT_NONE):
            _OPTIONS[name](spec, given)
    encoder(spec, submission.action, blobs)
    check(spec)
    return spec, blobs.uploads


def check(spec: action_pb2.ActionSpec) -> None:
    """Raises InvalidArgumentError for an action that breaks a rule of the contract, whatever a scheduler's state."""
    try:
        check_action(spec)
    except RefusedError as refusal:
        raise broken_rule(refusal) from None


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


def _put_demand(spec: action_pb2.ActionSpec, given: object) -> None:
    spec.demand.SetInParent()  # an empty demand differs from none
    for resource in instance("demand", given, Demand, "a Demand, for instance Demand(cpu=2)").resources:
        entry = spec.demand.resources.add(hold=_HOLD[resource.hold])
        where = f"demand.{resource.name}"
        put(entry, where, resource=resource.name)
        entry.min_milli_units, entry.max_milli_units = resource.min_milli_units, resource.max_milli_units
        _put_speed_up(entry, where, resource)


def _put_speed_up(entry: action_pb2.ResourceDemand, where: str, resource: Resource) -> None:
    if resource.amdahl_fraction is not None:
        put(entry.speed_up, where, amdahl_fraction=resource.amdahl_fraction)
    for index, (units, gain) in enumerate(resource.speed_up):
        put(entry.speed_up.table.points.add(), f"{where}.speed_up[{index}]", units=units, speed_up=gain)


def _put_timeouts(spec: action_pb2.ActionSpec, given: object) -> None:
    put_same(spec.timeouts, "timeouts", instance("timeouts", given, Timeouts, "a Timeouts, for instance Timeouts(...)"))


def _put_retry(spec: action_pb2.ActionSpec, given: object) -> None:
    spec.retry.SetInParent()
    put_same(spec.retry, "retry", instance("retry", given, Retry, "a Retry, for instance Retry(max_attempts=1)"))


def _put_weight(spec: action_pb2.ActionSpec, given: Any) -> None:
    if positive("weight", given) != 1.0:
        spec.weight = given


def _put_unservable(spec: action_pb2.ActionSpec, given: object) -> None:
    if instance("unservable", given, Unservable, "an Unservable") is Unservable.WAIT:
        spec.unservable = action_pb2.UNSERVABLE_WAIT


_OPTIONS: Mapping[str, Callable[[action_pb2.ActionSpec, Any], None]] = {
    "demand": _put_demand,
    "expected_duration_s": lambda spec, given: put_durations(spec, "", expected_duration=given),
    "label": lambda spec, given: put(spec, "", label=given),
    "retry": _put_retry,
    "task": lambda spec, given: put(spec, "", task=given),
    "timeouts": _put_timeouts,
    "traceparent": lambda spec, given: put(spec, "", traceparent=given),
    "unservable": _put_unservable,
    "weight": _put_weight,
}
"""By name; the id of an action is put by `encode_submission`."""
