"""From the client's values to the messages of the contract. Pure: uploads are collected, not made."""

from __future__ import annotations

from typing import Any

from callsheet.client.codec.blobs import BlobWriter
from callsheet.client.codec.fields import at_least_one, is_number, numbers, positive, put, put_durations
from callsheet.client.codec.kinds import KINDS
from callsheet.client.errors import invalid
from callsheet.client.words.actions import Action, Submission, ToolCall
from callsheet.client.words.arguments import identifier, instance, optional
from callsheet.client.words.commands import SandboxFile, check_text
from callsheet.client.words.demand import Demand, Hold, Resource
from callsheet.client.words.options import ActionOptions, Retry, Timeouts, Unservable, check_options
from callsheet.v1 import action_pb2

_ENCODERS = {action: encoder for kind in KINDS.values() for action, encoder in kind.encoders.items()}
_HOLD = numbers(Hold, "HOLD_", action_pb2.Hold)
_UNSERVABLE = numbers(Unservable, "UNSERVABLE_", action_pb2.Unservable)


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
