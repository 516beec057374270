"""Rights to read and name stored payloads. If callers have tokens, a digest does not suffice."""

from __future__ import annotations

from collections.abc import Collection

from callsheet.scheduler.access.identity import Identity, Scope, is_part_of
from callsheet.scheduler.core.state.entities import Manager
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.words.refusals import RefusalCode, RefusedError
from callsheet.scheduler.store.payloads import PayloadNotFoundError, PayloadStore

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
        """Returns whether a manager may run attempts that are not known to be its: it reports them when it registers.

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
