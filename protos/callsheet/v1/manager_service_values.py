"""Values of manager_service.proto, which `make protos` writes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from callsheet.v1 import action_values, manager_service_pb2, weights_values
from callsheet.v1.values import EngineWeightsMethods, mapping


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Something a manager can do.

    Attributes:
        name: Its name: "sandbox", "test-suite", a model, an API; "sandbox:" and an image for sandboxes with it, which
            serves only actions that ask for it.
        kinds: The kinds of action it serves; at least one.
        slots: The most attempts at once; None means no limit but the node's resources.
        reserved: Units of the node's resources it holds as long as it is registered, for instance the cores of an
            engine's threads.
        policy_version: For models: the policy version they serve.
        shared: Units of the node's resources that the manager shares among its own attempts by itself, for as long as
            it is registered. An attempt on this service may be granted up to all of them, whatever others were granted,
            and gets no core ids for them. All services of a manager share one pool, which has the most units that any
            of them names.
        weights: For engines: their weights; None for other services. ServiceState may change it.
        problem: In answers of the admin service: the reason why nothing can begin on it, as a sentence; empty if
            something can.
    """

    name: str
    kinds: tuple[action_values.ActionKind, ...]
    slots: int | None
    reserved: Mapping[str, int]
    policy_version: int
    shared: Mapping[str, int] = field(default_factory=dict)
    weights: EngineWeights | None = None
    problem: str = ""

    @classmethod
    def from_message(cls, message: manager_service_pb2.HostedService) -> Self:
        """Returns the value of a message."""
        return cls(
            message.name,
            tuple(action_values.ACTION_KIND[each] for each in message.kinds if each in action_values.ACTION_KIND),
            message.slots or None,
            mapping(message.reserved),
            message.policy_version,
            mapping(message.shared),
            EngineWeights.from_message(message.weights) if message.HasField("weights") else None,
            message.problem,
        )


@dataclass(frozen=True, slots=True)
class EngineWeights(EngineWeightsMethods):
    """The weights of one engine.

    Attributes:
        standing: Whether it may serve them.
        version: Their version, as far as it is known.
        reason: The reason why it may not serve them, or why its newest update failed, as a sentence; empty if it did
            not.
    """

    standing: weights_values.WeightsStanding
    version: int
    reason: str = ""

    @classmethod
    def from_message(cls, message: manager_service_pb2.EngineWeights) -> Self:
        """Returns the value of a message."""
        return cls(
            weights_values.WEIGHTS_STANDING.get(message.standing, weights_values.WeightsStanding.UNSPECIFIED),
            message.version,
            message.reason,
        )


@dataclass(frozen=True, slots=True)
class SandboxOwner:
    """A live sandbox with its owner.

    Attributes:
        job_id: The job of its trajectory.
        trajectory_id: Its trajectory.
        sandbox_id: Its incarnation.
    """

    job_id: str
    trajectory_id: str
    sandbox_id: str

    @classmethod
    def from_message(cls, message: manager_service_pb2.SandboxState) -> Self:
        """Returns the value of a message."""
        return cls(
            message.job_id,
            message.trajectory_id,
            message.sandbox_id,
        )
