"""The treatment of failed rollouts, and requests for batches. Durations are seconds."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.v1.job_values import OnInfra
from callsheet.v1.outcome_values import FailureKind

DEFAULT_ADMIT_WITHIN = 1
"""The `admit_within` of `Staleness()` without arguments."""
LOST_TO_INFRA = frozenset({FailureKind.INFRA})


@dataclass(frozen=True, slots=True)
class FailurePolicy:
    """The effect of failed rollouts on the groups of a job.

    A failure of another kind abandons its member, which keeps its seat and tells the failure as its reason. It is
    neither masked nor replaced.

    Attributes:
        on_infra: The treatment of lost members.
        infra_budget: For how many members of a group, or retries of RETRY; None means the group's size.
        lost_to: Kinds of failure that a member is lost to.
    """

    on_infra: OnInfra = OnInfra.REPLACE
    infra_budget: int | None = None
    lost_to: frozenset[FailureKind] = LOST_TO_INFRA


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """A trainer's wish for a batch; see `Job.take_batch`."""

    batch_id: str
    at_least: int
    at_most: int
    wait_s: float
    lease_s: float | None
