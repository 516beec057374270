"""Rules for whole actions, and for the inputs that have no commands. All raise RefusedError INVALID_ARGUMENT."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from callsheet.v1 import action_pb2
from callsheet.v1.names import MAX_ID, MAX_STOP_CHARACTERS, MAX_STOP_TEXTS
from callsheet.v1.refusals import NUL, bad_text, invalid
from callsheet.v1.rewards import scores_in_sandbox
from callsheet.v1.rules.commands import check_env_reset, check_env_step
from callsheet.v1.rules.fields import (
    References,
    at_least,
    blob,
    few,
    identifier,
    known,
    seconds,
    short_text,
    token_ids,
    traceparent,
    within,
)
from callsheet.v1.rules.options import check_demand, check_retry, check_timeouts
from callsheet.v1.rules.rewards import check_reward

MAX_WEIGHT: Final = 1e6
"""Sums of weights must stay finite."""
_LOG_PROBS_MODES: Final = frozenset(action_pb2.LogProbsMode.values())
_UNSERVABLE: Final = frozenset(action_pb2.Unservable.values())


def check_action(spec: action_pb2.ActionSpec) -> References:
    """Checks an action by all rules that hold in any state of a scheduler; returns the payloads that it refers to."""
    references = check_work(spec)
    if spec.HasField("demand"):
        check_demand(spec.demand, of_reset=spec.HasField("env_reset"))
    if spec.HasField("timeouts"):
        check_timeouts(spec.timeouts)
    if spec.HasField("retry"):
        check_retry(spec.retry)
    return references


def check_work(spec: action_pb2.ActionSpec) -> References:
    """Checks an action except for its demand, timeouts and retry, which repeat; see `check_action`."""
    payload = spec.WhichOneof("payload")
    if payload is None:
        raise invalid("payload", "", f"must be one of {', '.join(_PAYLOADS)}")
    identifier("job_id", spec.job_id)
    identifier("action_id", spec.action_id)
    references = _PAYLOADS[payload](spec)
    if trajectory_id := spec.trajectory_id:
        identifier("trajectory_id", trajectory_id)
    elif needs_sandbox(spec):
        raise invalid("trajectory_id", "", "must be set: the action runs in the sandbox of its trajectory")
    # No other API, and no other model of these two kinds, can stand in for one that is not named.
    if payload == "tool_call" or (payload == "reward" and spec.reward.WhichOneof("scorer") in ("teacher", "judge")):
        identifier("service", spec.service)
    elif service := spec.service:
        short_text("service", service)
    if label := spec.label:
        _check_name("label", label)
    if task := spec.task:
        _check_name("task", task)
    if span := spec.traceparent:
        traceparent("traceparent", span)
    if unservable := spec.unservable:
        known("unservable", unservable, _UNSERVABLE)
    if weight := spec.weight:
        within("weight", weight, 0.0, MAX_WEIGHT)
    if spec.HasField("expected_duration"):
        seconds("expected_duration", spec.expected_duration)
    return references


def _check_name(field: str, text: str) -> None:
    if NUL in text:
        raise bad_text(field, text, "must not contain NUL", NUL)
    short_text(field, text)


def needs_sandbox(spec: action_pb2.ActionSpec) -> bool:
    """Returns whether an action needs its trajectory's sandbox or makes it."""
    payload = spec.WhichOneof("payload")
    return payload in ("env_step", "env_reset") or (payload == "reward" and scores_in_sandbox(spec.reward))


def check_generate(generate: action_pb2.GenerateInput) -> References:
    """Checks a prompt and its sampling."""
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


def check_tool_call(tool_call: action_pb2.ToolCallInput) -> References:
    """Checks a method, and arguments if any."""
    if not 0 < len(tool_call.method) <= MAX_ID or not tool_call.method.isprintable():
        raise bad_text("tool_call.method", tool_call.method, f"must have 1 to {MAX_ID} printable characters")
    return blob("tool_call.arguments", tool_call.arguments) if tool_call.HasField("arguments") else []


_PAYLOADS: Final[Mapping[str, Callable[[action_pb2.ActionSpec], References]]] = {
    "generate": lambda spec: check_generate(spec.generate),
    "env_reset": lambda spec: check_env_reset(spec.env_reset),
    "env_step": lambda spec: check_env_step(spec.env_step),
    "tool_call": lambda spec: check_tool_call(spec.tool_call),
    "reward": lambda spec: check_reward(spec.reward, spec.trajectory_id),
}
