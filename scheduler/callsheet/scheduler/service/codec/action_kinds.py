"""What the service knows of each kind of action: a new kind is one more row of `KIND_RULES`.

Elsewhere in the scheduler it is a member of `core.model.ActionKind` and a prior of `planner.predictors.predictors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from callsheet.scheduler.core.words.model import CPU, MEMORY, ActionKind, Demand, ResourceDemand, SandboxCopy, SpeedUp
from callsheet.scheduler.core.words.registration import BUILD_SERVICE, IMAGE_SERVICE_PREFIX
from callsheet.scheduler.service.codec import payload_rules, reward_rules
from callsheet.scheduler.service.codec.payload_rules import References
from callsheet.scheduler.service.codec.rules import identifier, short_text
from callsheet.v1 import action_pb2, common_pb2, outcome_pb2
from callsheet.v1.rewards import command_scorer, may_score_in_copy, scores_in_sandbox

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
        lambda spec: payload_rules.check_generate(spec.generate),
    ),
    "env_reset": KindRules(
        ActionKind.ENV_RESET,
        lambda spec: payload_rules.check_env_reset(spec.env_reset),
        demand=lambda _: _NEW_SANDBOX,
        service=_reset_service,
        in_sandbox=lambda _: True,
        result_blobs=lambda result: _command_blobs(result.env_reset.set_up),
    ),
    "env_step": KindRules(
        ActionKind.ENV_STEP,
        lambda spec: payload_rules.check_env_step(spec.env_step),
        demand=lambda _: _ONE_CORE,
        in_sandbox=lambda _: True,
        result_blobs=lambda result: _command_blobs(result.env_step),
    ),
    "tool_call": KindRules(
        ActionKind.TOOL_CALL,
        lambda spec: payload_rules.check_tool_call(spec.tool_call),
        service=lambda spec: identifier("service", _service(spec)),
        called_once=lambda spec: not spec.tool_call.idempotent,
        result_blobs=lambda result: [result.tool_call.response],
    ),
    "reward": KindRules(
        ActionKind.REWARD,
        lambda spec: reward_rules.check_reward(spec.reward, spec.trajectory_id),
        demand=_reward_demand,
        service=_reward_service,
        in_sandbox=lambda spec: scores_in_sandbox(spec.reward),
        copy=_reward_copy,
        result_blobs=lambda result: _command_blobs(result.reward.command),
    ),
}
"""By the names of their payloads, which are those of their results as well."""
