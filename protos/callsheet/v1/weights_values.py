"""Values of weights.proto, which `make protos` writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final, Self

from callsheet.v1 import weights_pb2
from callsheet.v1.values import RolloutMethods, seconds


class UpdateMode(StrEnum):
    """The effect of a weight update on requests that have begun."""

    DRAIN = "drain"
    """They finish under the old weights first."""
    ABORT = "abort"
    """They end now with the tokens they have; resuming them is their client's choice."""
    KEEP = "keep"
    """The weights change between two of their tokens."""


UPDATE_MODE: Final[Mapping[int, UpdateMode]] = {
    1: UpdateMode.DRAIN,
    2: UpdateMode.ABORT,
    3: UpdateMode.KEEP,
}


class WeightsStanding(Enum):
    """The standing of an engine's weights: whether the engine may serve them."""

    UNSPECIFIED = "unspecified"
    """The manager reports no weights, for instance because it has no engine. Also a value that is newer than this
    code."""
    INITIAL = "initial"
    """The weights that the engine was started with; this process of its manager has not changed them."""
    PROVED = "proved"
    """The weights of a rollout, proved."""
    UPDATING = "updating"
    """The weights are being changed: the engine begins nothing now."""
    UNPROVED = "unproved"
    """The weights are unknown: an update failed half-way or was not proved, or the engine has restarted since."""


WEIGHTS_STANDING: Final[Mapping[int, WeightsStanding]] = {
    0: WeightsStanding.UNSPECIFIED,
    1: WeightsStanding.INITIAL,
    2: WeightsStanding.PROVED,
    3: WeightsStanding.UPDATING,
    4: WeightsStanding.UNPROVED,
}


class EngineState(Enum):
    """The place of an engine in a rollout."""

    WAITING = "waiting"
    """The engine has not begun."""
    UPDATING = "updating"
    """The engine is updating, or proves its weights."""
    PROVED = "proved"
    """The engine has proved the version."""
    QUARANTINED = "quarantined"
    """The engine's last update failed; it is tried again later."""


ENGINE_STATE: Final[Mapping[int, EngineState]] = {
    1: EngineState.WAITING,
    2: EngineState.UPDATING,
    3: EngineState.PROVED,
    4: EngineState.QUARANTINED,
}


@dataclass(frozen=True, slots=True)
class RolloutEngine:
    """One engine in a rollout.

    Attributes:
        manager_id: Its manager.
        state: Its place in the rollout.
        version: The version that it serves, or served last.
        serving: Whether it is given generate actions now: it has proved what it serves, or serves what it was started
            with.
        reason: The reason why it waits, is quarantined or serves nothing; empty if it does not.
        failures: Updates that failed since its last good one.
        retry_in_s: Time until it is tried again; None if it is not quarantined, or waits for another publish.
        exposed_s: Seconds in which it could not serve because of its weights, since its manager registered.
        last_exposed_s: The part of `exposed_s` that its newest update took.
        warning: A doubt about proved weights, for instance that the engine answers as before; empty if there is none.
    """

    manager_id: str
    state: EngineState = EngineState.WAITING
    version: int = 0
    serving: bool = False
    reason: str = ""
    failures: int = 0
    retry_in_s: float | None = None
    exposed_s: float = 0.0
    last_exposed_s: float = 0.0
    warning: str = ""

    @classmethod
    def from_message(cls, message: weights_pb2.EngineStatus) -> Self:
        """Returns the value of a message."""
        return cls(
            message.manager_id,
            ENGINE_STATE.get(message.state, EngineState.WAITING),
            message.version,
            message.serving,
            message.reason,
            message.failures,
            seconds(message.retry_in) if message.HasField("retry_in") else None,
            message.exposed_s,
            message.last_exposed_s,
            message.warning,
        )


@dataclass(frozen=True, slots=True)
class RolloutStatus(RolloutMethods):
    """The rollout of a job's policy version over the engines of a service.

    Attributes:
        service: The service.
        version: The version of the weights.
        mode: The effect on requests that have begun, as published.
        at_once: The most engines that update at a time, as published.
        engines: Its engines, by their managers' ids.
    """

    service: str
    version: int
    mode: UpdateMode = UpdateMode.DRAIN
    at_once: int = 1
    engines: tuple[RolloutEngine, ...] = ()

    @classmethod
    def from_message(cls, message: weights_pb2.RolloutStatus) -> Self:
        """Returns the value of a message."""
        return cls(
            message.service,
            message.version,
            UPDATE_MODE.get(message.mode, UpdateMode.DRAIN),
            message.at_once or 1,
            tuple(map(RolloutEngine.from_message, message.engines)),
        )


@dataclass(frozen=True, slots=True)
class BroadcastTensor:
    """A tensor that the trainer broadcasts.

    Attributes:
        name: Its name in the model.
        dtype: Its torch dtype, such as "bfloat16".
        shape: Its shape.
    """

    name: str
    dtype: str
    shape: Sequence[int]


@dataclass(frozen=True, slots=True)
class TransferGroup:
    """Weights that the trainer broadcasts to a group of torch.distributed which it forms as rank 0.

    All engines of the service join it, in the order of their managers' ids and with as many ranks each, and update
    together. A publish returns once that was accepted: form the group and broadcast then.

    Attributes:
        address: Host of the group's rendezvous.
        port: Its port.
        group_name: Names the group; an engine that is in it already does not join again.
        world_size: Members, the trainer among them; at least 2.
        tensors: The tensors of the broadcast, in its order; at least one.
        backend: "nccl", or "gloo" on CPUs.
    """

    address: str
    port: int
    group_name: str
    world_size: int
    tensors: Sequence[BroadcastTensor]
    backend: str = "nccl"


@dataclass(frozen=True, slots=True)
class Canary:
    """The proof of one set of weights: a prompt, and the trainer's own greedy answer to it.

    Attributes:
        prompt_token_ids: The prompt; empty takes one that every vocabulary has.
        token_ids: The greedy answer of the trainer's own model; empty if the trainer does not know it. All engines must
            then answer as the first one that was proved.
        log_probs: The log-probability of each token of the answer, at temperature 1 over the whole vocabulary.
        unchanged: Whether the weights are those of before under a new version, so that no warning says that the answer
            is as before.
    """

    prompt_token_ids: Sequence[int] = ()
    token_ids: Sequence[int] = ()
    log_probs: Sequence[float] = ()
    unchanged: bool = False
