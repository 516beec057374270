"""The service's rules for each kind of action: a new kind is one more row of `KIND_RULES`.

Elsewhere in the scheduler it is a member of `core.model.ActionKind` and a prior of `planner.predictors.predictors`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from callsheet.scheduler.core.words.model import CPU, MEMORY, ActionKind, Demand, ResourceDemand, SandboxCopy, SpeedUp
from callsheet.v1 import action_pb2, common_pb2, outcome_pb2
from callsheet.v1.names import BUILD_SERVICE, IMAGE_SERVICE_PREFIX
from callsheet.v1.rewards import command_scorer, may_score_in_copy

_NOTHING = Demand()
_ONE_CORE = Demand((ResourceDemand(CPU, 1, 1),))
_NEW_SANDBOX = Demand((ResourceDemand(CPU, 1, 1), ResourceDemand(MEMORY, 256, 256, SpeedUp(), True)))


@dataclass(frozen=True, slots=True)
class KindRules:
    """The meaning of an action of a kind, once the rules of the contract have been checked.

    Attributes:
        kind: The kind.
        demand: The demand of an action that states none.
        service: Name of the service that an action needs.
        copy: Whether an action runs in a copy of that sandbox.
        called_once: Whether an action may begin only once.
        result_blobs: All that a result may have stored.
    """

    kind: ActionKind
    demand: Callable[[action_pb2.ActionSpec], Demand] = lambda _: _NOTHING
    service: Callable[[action_pb2.ActionSpec], str] = lambda spec: spec.service
    copy: Callable[[action_pb2.ActionSpec], SandboxCopy] = lambda _: SandboxCopy.NEVER
    called_once: Callable[[action_pb2.ActionSpec], bool] = lambda _: False
    result_blobs: Callable[[outcome_pb2.Succeeded], Sequence[common_pb2.Blob]] = lambda _: ()


def _reset_service(spec: action_pb2.ActionSpec) -> str:
    image = spec.env_reset.image
    if spec.env_reset.HasField("build"):
        return spec.service or BUILD_SERVICE
    return spec.service or (f"{IMAGE_SERVICE_PREFIX}{image}" if image else "")


def _reward_service(spec: action_pb2.ActionSpec) -> str:
    runs = command_scorer(spec.reward)
    usual = "scorer" if runs is None else f"{IMAGE_SERVICE_PREFIX}{runs.image}" if runs.image else "test-suite"
    return spec.service or usual


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
    "generate": KindRules(ActionKind.GENERATE),
    "env_reset": KindRules(
        ActionKind.ENV_RESET,
        demand=lambda _: _NEW_SANDBOX,
        service=_reset_service,
        result_blobs=lambda result: _command_blobs(result.env_reset.set_up),
    ),
    "env_step": KindRules(
        ActionKind.ENV_STEP,
        demand=lambda _: _ONE_CORE,
        result_blobs=lambda result: _command_blobs(result.env_step),
    ),
    "tool_call": KindRules(
        ActionKind.TOOL_CALL,
        called_once=lambda spec: not spec.tool_call.idempotent,
        result_blobs=lambda result: [result.tool_call.response],
    ),
    "reward": KindRules(
        ActionKind.REWARD,
        demand=_reward_demand,
        service=_reward_service,
        copy=_reward_copy,
        result_blobs=lambda result: _command_blobs(result.reward.command),
    ),
}
"""By the names of their payloads, which are those of their results as well."""
