"""Rollouts of new weights, and what is known of each engine's weights."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum

from callsheet.scheduler.core.words.model import Token


class WeightsStanding(IntEnum):
    """State of an engine's weights, which decides if it may serve them; the numbers are the contract's."""

    INITIAL = 1
    PROVED = 2
    UPDATING = 3
    UNPROVED = 4


@dataclass(frozen=True, slots=True)
class UpdateEnd:
    """How an update of an engine ended.

    Attributes:
        update: Which one.
        failure: Why it failed, as a sentence; empty if the weights are proved.
        exposed_s: Seconds in which the engine could begin nothing because of it.
        canary: What it answered to the canary, encoded; empty if it came to none.
        warning: What a trainer should know though the weights are proved; empty if there is nothing.
    """

    update: Token
    failure: str = ""
    exposed_s: float = 0.0
    canary: bytes = b""
    warning: str = ""


@dataclass(frozen=True, slots=True)
class WeightsTold:
    """A manager's report on its engine's weights.

    Attributes:
        version: The policy version of the weights, as far as it is known.
        proved_by: The rollout that the engine has proved; None unless PROVED.
        updating: The update that the engine is doing; None unless UPDATING.
        reason: Why the weights are UNPROVED, as a sentence.
        last_update: The newest update that ended; None if there was none.
    """

    standing: WeightsStanding = WeightsStanding.INITIAL
    version: int = 0
    proved_by: Token | None = None
    updating: Token | None = None
    reason: str = ""
    last_update: UpdateEnd | None = None


@dataclass(frozen=True, slots=True)
class WeightsOffer:
    """Weights that a client publishes.

    Attributes:
        service: Whose engines take them; empty where only one serves generate.
        at_once: The most engines that update at a time, at least 1.
        timeout: The longest wait for a drain and for the update, each, in seconds.
        plan: All of it, encoded, for the engines.
        expects_answer: Whether it says what the canary must answer, so that no engine must be proved before others.
        group_ranks: Ranks that the engines of the service have in the trainer's group; 0 if there is none.
        payloads: Digests of the stored payloads that they are in.
    """

    service: str
    at_once: int
    timeout: float
    plan: bytes
    expects_answer: bool = False
    group_ranks: int = 0
    payloads: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class PublishRight:
    """Services for which a job's token lets the job publish weights.

    Attributes:
        named: Services that the token names.
        reserved: Services that any valid token names. They are for jobs whose tokens name them.
    """

    named: frozenset[str] = frozenset()
    reserved: frozenset[str] = frozenset()


@dataclass(slots=True, eq=False)
class WeightsRollout:
    """The newest weights of a service, on their way over its engines.

    Attributes:
        token: Its own; grows with each publish.
        job_id: The job that published them. It owns the service's weights while it is open.
        version: Their policy version.
        offer: What was published, with the service's name filled in.
        reference: What the first engine that was proved answered to the canary, encoded; empty before.
        begun: Whether the engines of a group were told. They are told once: the trainer broadcasts once.
    """

    token: Token
    job_id: str
    version: int
    offer: WeightsOffer
    reference: bytes = b""
    begun: bool = False

    @property
    def service(self) -> str:
        """Name of the service that has the weights."""
        return self.offer.service

    @property
    def width(self) -> int:
        """The most engines that may update at a time now: without anything to compare with, the first goes alone."""
        return self.offer.at_once if self.reference or self.offer.expects_answer else 1


@dataclass(slots=True, eq=False)
class EngineWeights:
    """The weights of one engine.

    Attributes:
        told: What its manager said last.
        trusted: Whether it may serve what it has: what it proved, or its first weights if none were published then.
        updating: The update that it was told to do and has not answered for; None if there is none.
        rollout: The rollout of that update, or of the one before; None where it was to restore the first weights.
        answer_by: When the manager must have answered, in seconds since the epoch.
        failures: Updates that failed since the last good one.
        retry_at: When it may be tried again; infinite where only another publish helps, or an operator healed it.
        reason: Why the last one failed, as a sentence; empty if it did not.
        gated_since: Since when it is given nothing; None if it is given work.
        exposed_s: Seconds in which it was given nothing, before that.
    """

    told: WeightsTold = field(default_factory=WeightsTold)
    trusted: bool = True
    updating: Token | None = None
    rollout: Token | None = None
    answer_by: float = 0.0
    failures: int = 0
    retry_at: float = -math.inf
    reason: str = ""
    gated_since: float | None = None
    exposed_s: float = 0.0

    @property
    def gated(self) -> bool:
        """Returns whether the engine's weights forbid that an action is sent to it."""
        return not self.trusted or self.told.standing in (WeightsStanding.UPDATING, WeightsStanding.UNPROVED)

    @property
    def busy(self) -> bool:
        """Returns whether the engine is updating or has an order to update."""
        return self.updating is not None or self.told.standing is WeightsStanding.UPDATING

    def has_proved(self, rollout: WeightsRollout) -> bool:
        """Returns whether the engine has proved the weights of a rollout."""
        return self.told.standing is WeightsStanding.PROVED and self.told.proved_by == rollout.token

    def exposed_until(self, now: float) -> float:
        """Seconds in which it was given nothing so far."""
        return self.exposed_s + (0.0 if self.gated_since is None else max(now - self.gated_since, 0.0))
