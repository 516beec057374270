"""How an attempt ended, as the scheduler is told: pure translations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from callsheet.managers.executor import AttemptResult, Broken, Completed, Stopped
from callsheet.v1 import manager_service_pb2, outcome_pb2

AttemptEnded = manager_service_pb2.AttemptEnded
_MIB = 1 << 20
_MIB_A_GIB = 1024


class StopReport(Enum):
    """Report on an attempt that stopped on request."""

    CANCELLED = "cancelled"
    START_TO_CLOSE = "start_to_close"
    MANAGER_STOPPED = "manager_stopped"


@dataclass(frozen=True, slots=True)
class StopOrder:
    """Order of the runtime to stop an attempt; `reason` is a sentence."""

    report: StopReport
    reason: str


@dataclass(frozen=True, slots=True)
class Spent:
    """Resources that an attempt spent.

    Attributes:
        execution_s: Seconds for which it executed.
        granted_unit_s: Unit-seconds that were granted to it meanwhile, by resource; of memory MiB-seconds.
        waited_s: Seconds for which it waited, by cause.
        sandbox_held_mib: MiB that its trajectory's sandbox holds after it.
        rest_mib: MiB that the sandbox held before it, which its trajectory is charged for anyway; 0 if not known.
        thawed_mib: MiB that the sandbox had beyond those while the attempt executed.
        cpu_s: CPU seconds of everything that ran for it, if more than its result's was counted.
    """

    execution_s: float
    granted_unit_s: Mapping[str, float]
    waited_s: Mapping[str, float] = field(default_factory=dict)
    sandbox_held_mib: int = 0
    rest_mib: int = 0
    thawed_mib: int = 0
    cpu_s: float = 0.0


def describe_end(
    grant: manager_service_pb2.Grant, result: AttemptResult, order: StopOrder | None, spent: Spent
) -> AttemptEnded:
    """Returns the end of an attempt that had started.

    Args:
        grant: Its grant.
        result: What its executor returned.
        order: The order to stop it, if there was one.
        spent: What it took.
    """
    end = AttemptEnded(
        token=grant.token,
        key=grant.key,
        attempt=grant.attempt,
        usage=result.usage,
        execution_s=spent.execution_s,
        started=True,
        body_hash=grant.body_hash,
        waited_s=spent.waited_s,
        sandbox_held_mib=spent.sandbox_held_mib,
    )
    _add_cost(end.usage, spent)
    if isinstance(result, Completed):
        end.succeeded.CopyFrom(result.succeeded)
    elif isinstance(result, Broken):
        end.failed.CopyFrom(result.failed)
    else:
        _describe_stop(end, result, order)
    return end


def _add_cost(usage: outcome_pb2.Usage, spent: Spent) -> None:
    """Adds the time of its grant, and what was measured, to the cost that its executor told; see the contract's Cost.

    Memory is used at its peak for all of the time: a bound from above, as nothing measures it in between.
    """
    granted, held, used = spent.granted_unit_s, usage.cost.held, usage.cost.used
    of_memory = granted.get("memory", 0.0) + spent.thawed_mib * spent.execution_s
    peak_mib = max(usage.peak_memory_bytes / _MIB - spent.rest_mib, 0.0)
    for kept, resource, amount in (
        (held, "cpu", granted.get("cpu", 0.0)),
        (held, "gpu", granted.get("gpu", 0.0)),
        (held, "memory", of_memory / _MIB_A_GIB),
        (used, "cpu", max(usage.cpu_s, spent.cpu_s)),
        (used, "memory", peak_mib * spent.execution_s / _MIB_A_GIB),
    ):
        if amount:
            kept[resource] += amount


def _describe_stop(end: AttemptEnded, result: Stopped, order: StopOrder | None) -> None:
    if order is None:
        end.failed.CopyFrom(infra_failure("executor_error", "the executor stopped the attempt without being asked to"))
    elif order.report is StopReport.CANCELLED:
        end.cancelled.reason = order.reason
    elif order.report is StopReport.START_TO_CLOSE:
        end.failed.kind = outcome_pb2.FAILURE_KIND_TIMEOUT
        end.failed.timeout = outcome_pb2.TIMEOUT_KIND_START_TO_CLOSE
        end.failed.reason = "start_to_close"
        end.failed.message = with_hint(order.reason, result.hint)
    else:
        end.failed.CopyFrom(infra_failure("manager_stopped", order.reason))
    if result.partial is not None:
        (end.cancelled if end.HasField("cancelled") else end.failed).partial.CopyFrom(result.partial)


def with_hint(message: str, hint: str) -> str:
    """Returns a message with a hint behind it, if there is one."""
    return f"{message}; {hint}" if hint else message


def infra_failure(reason: str, message: str) -> outcome_pb2.Failed:
    """Returns an INFRA failure."""
    return outcome_pb2.Failed(kind=outcome_pb2.FAILURE_KIND_INFRA, reason=reason, message=message)


def refusal(grant: manager_service_pb2.Grant, reason: str, message: str, *, started: bool = False) -> AttemptEnded:
    """Returns the end of an attempt that is not run; `started` if its action was, by an earlier one."""
    return AttemptEnded(
        token=grant.token,
        key=grant.key,
        attempt=grant.attempt,
        failed=infra_failure(reason, message),
        started=started,
        body_hash=grant.body_hash,
    )


def bounded(end: AttemptEnded, max_bytes: int) -> AttemptEnded:
    """Returns the end itself, or an INFRA "result_too_large" in its place if it is over `max_bytes`.

    An end that no scheduler accepts would break every stream it is sent on, for ever.
    """
    size = end.ByteSize()
    if size <= max_bytes:
        return end
    message = f"the result has {size} bytes, more than the {max_bytes} that one message may have"
    return AttemptEnded(
        token=end.token,
        key=end.key,
        attempt=end.attempt,
        failed=infra_failure("result_too_large", message),
        usage=end.usage,
        execution_s=end.execution_s,
        started=end.started,
        body_hash=end.body_hash,
        waited_s=end.waited_s,
        sandbox_held_mib=end.sandbox_held_mib,
    )
