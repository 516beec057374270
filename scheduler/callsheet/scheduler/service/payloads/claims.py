"""Payloads that submits refer to: kept for their job from before the submit is decided, given back if it is refused.

The payloads of a closed job are let go here too, as a job of the same id may be opened and submit meanwhile. That
begins only while no such submit is on its way, and those that come after its beginning wait for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeAlias

import anyio
import structlog
from anyio import to_thread
from callsheet.scheduler.access.identity import Identity, Scope, is_part_of
from callsheet.scheduler.core.jobs.batches import buffered
from callsheet.scheduler.core.state.entities import Action, FinishedAction, Manager
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.model import RefusalCode, RefusedError, failed_precondition
from callsheet.scheduler.store.payloads import (
    PayloadNotFoundError,
    PayloadStore,
    PayloadStoreError,
    PayloadStoreFullError,
    PayloadsUnusableError,
)
from callsheet.v1 import common_pb2

# Who may read and name which stored payload. To know a digest is not enough where callers have tokens.

_RETRY_S = 0.2


class PayloadRights:
    """Decides by what callers put, by what jobs refer to, and by the attempts that managers were given.

    Whatever is denied looks like a payload that is not there.
    """

    def __init__(self, payloads: PayloadStore, state: SchedulerState) -> None:
        self._payloads = payloads
        self._state = state

    async def check_readable(self, identity: Identity, sha256: str) -> None:
        """Checks that a caller may read a payload.

        Raises:
            PayloadNotFoundError: It may not, or there is none.
            RefusedError: UNAVAILABLE: what a manager was given is not known yet, after a restart of the scheduler.
        """
        if identity.scope is Scope.MANAGER and self._was_given(identity.subject, sha256):
            return
        if await self.unknown_to(identity, identity.subject if identity.scope is Scope.JOB else "", [sha256]):
            if identity.scope is Scope.MANAGER and self._may_learn_of_more(identity.subject):
                rule = "cannot be read before it is known what this manager runs; try again"
                raise RefusedError(RefusalCode.UNAVAILABLE, "reference.sha256", sha256, rule, retry_after=_RETRY_S)
            raise PayloadNotFoundError(sha256)

    async def unknown_to(self, identity: Identity, job_id: str, sha256s: Collection[str]) -> list[str]:
        """Those of some payloads that a caller may not name in an action or outcome of a job."""
        owner = owner_of(identity)
        return await self._payloads.unknown_to(owner, job_id, sha256s) if owner else []

    def _was_given(self, subject: str, sha256: str) -> bool:
        managers = self._managers_of(subject)
        attempts = (attempt for manager in managers for attempt in manager.attempts.values())
        if any(sha256 in attempt.action.request.payloads for attempt in attempts):
            return True
        services = {name for manager in managers for name in manager.services}
        return any(sha256 in each.offer.payloads for name, each in self._state.rollouts.items() if name in services)

    def _may_learn_of_more(self, subject: str) -> bool:
        """Whether a manager may run attempts that are not known to be its: it tells them when it registers.

        Those whose submits a restart lost are known once their clients have submitted them again.
        """
        managers = self._managers_of(subject)
        if not managers or any(manager.session is None for manager in managers):
            return True
        return any(is_part_of(orphan.manager_id, subject) for orphan in self._state.orphans.values())

    def _managers_of(self, subject: str) -> list[Manager]:
        return [each for manager_id, each in self._state.managers.items() if is_part_of(manager_id, subject)]


def owner_of(identity: Identity) -> str:
    """As whom the payload store knows a caller; empty for those who may read everything."""
    return f"{identity.scope.value} {identity.subject}" if identity.subject else ""


References: TypeAlias = Sequence[common_pb2.PayloadReference]
_Key: TypeAlias = tuple[str, str]

FULL_RETRY_AFTER = 5.0
UNAVAILABLE_RETRY_AFTER = 1.0
# For which a submit waits until the payloads of a former job of its id are let go.
_RELEASE_WAIT_S = 10.0

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Claimed:
    """One payload for one job.

    Attributes:
        pending: Submits that refer to it and are not decided yet.
        taken: It is retained for their sake alone.
    """

    pending: int = 0
    taken: bool = False
    lock: anyio.Lock = field(default_factory=anyio.Lock)


class Claim:
    """What one submit has taken; settled once it is accepted or refused."""

    def __init__(self, claims: PayloadClaims) -> None:
        self._claims = claims
        self._keys: list[_Key] = []

    async def take(self, job_id: str, sha256: str) -> None:
        """Retains a payload; see `PayloadStore.retain`."""
        self._keys.append((job_id, sha256))
        await self._claims.take((job_id, sha256))

    def settle(self, *, accepted: bool) -> None:
        """Keeps what was taken, or gives it back. A second call does nothing."""
        keys, self._keys = self._keys, []
        for key in keys:
            self._claims.settle(key, accepted=accepted)


class PayloadClaims:
    """Retains payloads for submits and results. `run` lets go of those of refused submits and of closed jobs."""

    def __init__(self, payloads: PayloadStore, rights: PayloadRights, job_is_open: Callable[[str], bool]) -> None:
        self._payloads = payloads
        self._rights = rights
        self._job_is_open = job_is_open
        self._claimed: dict[_Key, _Claimed] = {}
        self._refused: list[_Key] = []
        self._closed_jobs: set[str] = set()
        self._releasing: dict[str, anyio.Event] = {}
        self._wake = anyio.Event()

    async def of_submit(self, identity: Identity, job_id: str, references: References) -> Claim:
        """Makes sure that the payloads of a submit are there and stay there for its job.

        Raises:
            RefusedError: FAILED_PRECONDITION naming the payload that is missing, or that the caller may not name,
                RESOURCE_EXHAUSTED if the store has no
                room to keep them, UNAVAILABLE if it cannot be asked.
        """
        claim = Claim(self)
        try:
            await self._check_rights(identity, job_id, references)
            for reference in references:
                await self._check(claim, job_id, reference)
        except BaseException:
            claim.settle(accepted=False)
            raise
        return claim

    async def of_result(self, identity: Identity, job_id: str, sha256: str) -> None:
        """Keeps a payload of a result, which its manager has put, for its job.

        Raises:
            PayloadStoreError: It is not there, or cannot be kept.
        """
        if await self._rights.unknown_to(identity, job_id, [sha256]):
            raise PayloadNotFoundError(sha256)
        claim, kept = Claim(self), False
        try:
            await claim.take(job_id, sha256)
            kept = True
        finally:
            claim.settle(accepted=kept)

    async def release_idle(self, job_id: str, sha256: str, idle_s: float) -> int:
        """Lets go of a payload that a job has not used for long; of none that a submit on its way refers to.

        Returns:
            How many went: one or none. See `PayloadStore.release`.

        Raises:
            PayloadStoreError: The store cannot be asked.
        """
        key = (job_id, sha256)
        claimed = self._claimed.setdefault(key, _Claimed())
        try:
            async with claimed.lock:
                if claimed.pending or claimed.taken:
                    return 0
                return await self._payloads.release(job_id, [sha256], idle_s)
        finally:
            if not (claimed.pending or claimed.taken) and self._claimed.get(key) is claimed:
                del self._claimed[key]

    def release_job(self, job_id: str) -> None:
        """Has `run` let go of the payloads that only this closed job used."""
        self._closed_jobs.add(job_id)
        self._wake.set()

    async def release(self, job_id: str, sha256s: Collection[str]) -> None:
        """Lets go of payloads that a job needs no longer; see `PayloadStore.release`.

        Raises:
            PayloadStoreError: The store cannot be asked.
        """
        await self._payloads.release(job_id, sha256s)

    async def run(self) -> None:
        """Lets go of what refused submits had taken and what closed jobs used, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            while self._refused:
                await self._give_back(self._refused.pop())
            for job_id in list(self._closed_jobs):
                await self._release_job(job_id)

    async def _check_rights(self, identity: Identity, job_id: str, references: References) -> None:
        try:
            unknown = await self._rights.unknown_to(identity, job_id, [reference.sha256 for reference in references])
        except PayloadStoreError as error:
            raise refusal_of(error) from error
        for reference in references:
            if reference.sha256 in unknown:
                raise _missing(reference)

    async def _check(self, claim: Claim, job_id: str, reference: common_pb2.PayloadReference) -> None:
        try:
            await claim.take(job_id, reference.sha256)
            size = await self._payloads.size(reference.sha256)
        except PayloadNotFoundError:
            raise _missing(reference) from None
        except PayloadStoreError as error:
            raise refusal_of(error) from error
        if size != reference.size:
            raise _missing(reference)

    async def take(self, key: _Key) -> None:
        """Retains a payload for a claim."""
        claimed = self._claimed.setdefault(key, _Claimed())
        claimed.pending += 1
        job_id, sha256 = key
        await self._former_job_released(job_id)
        async with claimed.lock:
            if await self._payloads.retain(job_id, [sha256]):
                claimed.taken = True

    def settle(self, key: _Key, *, accepted: bool) -> None:
        """Settles a claim's hold on a payload."""
        claimed = self._claimed[key]
        claimed.pending -= 1
        claimed.taken = claimed.taken and not accepted
        if claimed.pending:
            return
        if claimed.taken:
            self._refused.append(key)
            self._wake.set()
        else:
            del self._claimed[key]
        if key[0] in self._closed_jobs:
            self._wake.set()

    async def _former_job_released(self, job_id: str) -> None:
        """Waits while payloads of a closed job of this id are let go.

        Raises:
            PayloadsUnusableError: It takes too long.
        """
        with anyio.move_on_after(_RELEASE_WAIT_S):
            while (released := self._releasing.get(job_id)) is not None:
                await released.wait()
            return
        raise PayloadsUnusableError(f"the payloads of the closed job {job_id!r} are still being let go")

    async def _release_job(self, job_id: str) -> None:
        if any(key[0] == job_id and claimed.pending for key, claimed in self._claimed.items()):
            # The last of these submits to be decided wakes this again.
            return
        self._closed_jobs.discard(job_id)
        # A job opened again under the same id uses what its payloads are kept for; its own close releases them.
        if self._job_is_open(job_id):
            return
        released = self._releasing[job_id] = anyio.Event()
        try:
            await self._payloads.release_job(job_id)
        except PayloadStoreError as error:
            # The next start of a scheduler does it.
            _log.error("payloads_not_released", job_id=job_id, reason=str(error))
        finally:
            del self._releasing[job_id]
            released.set()

    async def _give_back(self, key: _Key) -> None:
        claimed = self._claimed.get(key)
        if claimed is None:
            return
        job_id, sha256 = key
        async with claimed.lock:
            if claimed.taken and not claimed.pending:
                try:
                    await self._payloads.release(job_id, [sha256])
                except PayloadStoreError as error:
                    # It stays until it is idle, or its job is closed.
                    _log.error("payload_not_given_back", job_id=job_id, sha256=sha256, reason=str(error))
                claimed.taken = False
        if not claimed.pending and self._claimed.get(key) is claimed:
            del self._claimed[key]


def refusal_of(error: PayloadStoreError) -> RefusedError:
    """The refusal of what a store cannot do now."""
    if isinstance(error, PayloadStoreFullError):
        retry_after = None if error.for_good else FULL_RETRY_AFTER
        return RefusedError(RefusalCode.RESOURCE_EXHAUSTED, "payload", error.needed, str(error), retry_after)
    retry_after = UNAVAILABLE_RETRY_AFTER if isinstance(error, PayloadsUnusableError) else None
    return RefusedError(RefusalCode.UNAVAILABLE, "payload", "", str(error), retry_after)


def _missing(reference: common_pb2.PayloadReference) -> RefusedError:
    rule = f"names no stored payload of {reference.size} bytes; put it first"
    return failed_precondition("reference.sha256", reference.sha256, rule)


# Payloads that open jobs have not used for long are let go, so that a job of weeks does not fill the store.
#
# Four things of an open job may need a payload: weights that it published, a finished trajectory in its buffer, an
# action without an outcome, and an outcome that is still kept. The first three are looked at. The last needs no
# look: the payloads of an outcome are retained when it comes, and every use renews the time for which they are.
# That is longer than the time of outcomes. As theirs, it stands still while no scheduler runs.

# An outcome comes a little after its payloads, and is forgotten a little after its time.
MARGIN_S: Final = 3600.0
# Looks per time that a payload is kept without use, and the longest time between two of them.
_LOOKS: Final = 8
_LONGEST_PAUSE_S: Final = 3600.0
# For one job; the rest is done at the next look.
_DEADLINE_S: Final = 600.0


class IdlePayloads:
    """Lets go of them now and then; see the module's docstring. `clock` tells seconds since the epoch."""

    def __init__(
        self, payloads: PayloadStore, claims: PayloadClaims, state: SchedulerState, clock: Callable[[], float]
    ) -> None:
        self._payloads = payloads
        self._claims = claims
        self._state = state
        self._clock = clock
        self._started_at = clock()
        self._kept_s = state.settings.finished_actions_s + MARGIN_S

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await self.release()
            await anyio.sleep(min(self._kept_s / _LOOKS, _LONGEST_PAUSE_S))

    async def release(self) -> None:
        """Looks at each open job once. What goes wrong with one is only logged: the next look does it."""
        for job_id in list(self._state.jobs):
            try:
                with anyio.fail_after(_DEADLINE_S):
                    released = await self._release(job_id, self._idle_s())
            except (PayloadStoreError, TimeoutError) as error:
                _log.error("idle_payloads_not_released", job_id=job_id, reason=str(error) or "it took too long")
            else:
                if released:
                    _log.info("idle_payloads_released", job_id=job_id, count=released)

    def _idle_s(self) -> float:
        """After how long a payload is idle.

        Until all that time passed under this scheduler, as much is added as there was none, which is never too little.
        """
        ran = self._clock() - self._started_at
        return self._kept_s if ran >= self._kept_s else self._kept_s + self._state.away_s

    async def _release(self, job_id: str, idle_s: float) -> int:
        idle = await self._payloads.idle(job_id, idle_s)
        job = self._state.jobs.get(job_id)
        if not idle or job is None:
            return 0
        # Actions that are submitted from here on use their payloads now, so that these are idle no more.
        needed = await to_thread.run_sync(_needed, list(job.actions.values()))
        needed |= {sha256 for each in buffered(job) for sha256 in each.result.payloads}
        needed |= {sha256 for each in self._state.rollouts.values() for sha256 in each.offer.payloads}
        return sum([await self._claims.release_idle(job_id, each, idle_s) for each in idle if each not in needed])


def _needed(actions: Iterable[Action | FinishedAction]) -> set[str]:
    """The payloads that actions without an outcome refer to."""
    return {sha256 for action in actions if isinstance(action, Action) for sha256 in action.request.payloads}
