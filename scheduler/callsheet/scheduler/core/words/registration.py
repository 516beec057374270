"""The words in which managers describe themselves: nodes, services, and what runs there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from callsheet.scheduler.core.words.engine_weights import WeightsTold
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, Token
from callsheet.v1.names import ANY_IMAGE_SERVICE, BUILD_SERVICE, IMAGE_SERVICE_PREFIX


@dataclass(frozen=True, slots=True)
class SandboxRef:
    """One incarnation of a trajectory's sandbox; `held_mib` is what it holds between actions, 0 if that is not told."""

    job_id: str
    trajectory_id: str
    sandbox_id: str
    held_mib: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class QuotaDescription:
    """A resource that is consumed: `per_second` units come back by time, at most `burst` are kept."""

    per_second: float
    burst: int


@dataclass(frozen=True, slots=True)
class NodeDescription:
    """A machine: units by resource (without cpu), core ids by NUMA node, and quotas by resource."""

    node_id: str
    capacity: dict[str, int]
    numa_cores: tuple[tuple[int, ...], ...]
    quotas: dict[str, QuotaDescription] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ServiceDescription:
    """Something a manager can do.

    Attributes:
        slots: Attempts at once; 0 means no limit.
        reserved: Units of the node that it keeps for itself while it is registered.
        shared: Units of the node that its manager shares among the attempts on it by itself: one of them may be granted
            up to all of these, however much is granted to the others. The services of a manager have one pool.
        setup_s: Seconds before an attempt sent now can begin, since its model or image is not there; 0 if it is.
        instances: Instances that are there; 0 if none is, or if the service has no such thing.
        kept_set_ups: Seconds that each set-up took whose result is kept, by `ActionRequest.set_up`.
        copies_sandboxes: Whether its rewards can run in copies of the sandboxes that its manager holds.
        weights: For models whose weights can change: which they have; None if that is not told.
        kv_tokens: Tokens that the KV cache of an engine holds; 0 if it is no engine, or does not tell.
        instance_slots: Attempts that each instance takes before another one elsewhere is worth its set-up; 0 for one.
        demand: Units that an action takes at least which names it.
    """

    name: str
    kinds: frozenset[ActionKind]
    slots: int
    reserved: dict[str, int]
    policy_version: int = 0
    shared: dict[str, int] = field(default_factory=dict)
    setup_s: float = 0.0
    instances: int = 0
    kept_set_ups: Mapping[str, float] = field(default_factory=dict)
    copies_sandboxes: bool = False
    weights: WeightsTold | None = None
    kv_tokens: int = 0
    instance_slots: int = 0
    demand: Mapping[str, int] = field(default_factory=dict)

    def serves(self, kind: ActionKind, name: str) -> bool:
        """Returns whether it serves an action that asks for this name; an empty one asks for any of the kind."""
        return kind in self.kinds and is_meant(self.name, name)


def is_meant(service: str, name: str) -> bool:
    """Returns whether an action that asks for `name` may go to a service; an empty name means no image service."""
    if not name:
        return not service.startswith(IMAGE_SERVICE_PREFIX)
    return service == name or (service == ANY_IMAGE_SERVICE and names_image(name))


def names_image(service: str) -> bool:
    """Returns whether a service is one for an image that has a name."""
    return service.startswith(IMAGE_SERVICE_PREFIX) and service != BUILD_SERVICE


@dataclass(frozen=True, slots=True)
class ServiceState:
    """Changes of a service since its manager registered; see `ServiceDescription`.

    Attributes:
        no_room: Whether no attempt could begin now, whatever units are free: they lie in no one chunk.
        weights: As in `ServiceDescription`; None leaves what was told before.
        others_sequences: Sequences on an engine that did not come through its manager.
        others_kv_tokens: Tokens of its KV cache that those hold.
        problem: Why nothing can begin on it, as a sentence; empty if it can.
        instance_slots: As in `ServiceDescription`.
        waiting_for_memory: Attempts that wait at its manager for memory which others give back.
        demand: As in `ServiceDescription`; empty leaves it as it was.
    """

    name: str
    setup_s: float
    instances: int
    kept_set_ups: Mapping[str, float] = field(default_factory=dict)
    no_room: bool = False
    weights: WeightsTold | None = None
    others_sequences: int = 0
    others_kv_tokens: int = 0
    problem: str = ""
    instance_slots: int = 0
    waiting_for_memory: int = 0
    demand: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt that a manager reports when it registers; `execution_s` is its execution clock, None if not told."""

    token: Token
    key: ActionKey
    attempt: int
    started: bool
    resources: dict[str, int]
    cores: tuple[int, ...]
    body_hash: bytes
    execution_s: float | None = None
