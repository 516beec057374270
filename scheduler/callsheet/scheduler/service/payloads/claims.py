"""Payloads that submits refer to: kept for their job from before the submit is decided, given back if it is refused.

The payloads of a closed job are let go here too, as a job of the same id may be opened and submit meanwhile. That
begins only while no such submit is on its way, and those that come after its beginning wait for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import anyio
import structlog
from callsheet.scheduler.access.identity import Identity
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError, failed_precondition
from callsheet.scheduler.service.payloads.rights import PayloadRights
from callsheet.scheduler.store.payloads import (
    PayloadNotFoundError,
    PayloadStore,
    PayloadStoreError,
    PayloadStoreFullError,
    PayloadsUnusableError,
)
from callsheet.v1 import common_pb2

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
    """Payloads that one submit has taken; settled once it is accepted or refused."""

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
