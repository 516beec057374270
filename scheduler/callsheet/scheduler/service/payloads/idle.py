"""Releases payloads that open jobs have not used for long, so that a job of weeks does not fill the store.

Four things of an open job may need a payload: weights that it published, a finished trajectory in its buffer, an action
without an outcome, and an outcome that is still kept. The first three are looked at. The last needs no look: the
payloads of an outcome are retained when it comes, and every use renews the time for which they are. That time is longer
than the time of outcomes. Like theirs, it stands still while no scheduler runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

import anyio
import structlog
from anyio import to_thread
from callsheet.scheduler.core.jobs.batches import buffered
from callsheet.scheduler.core.state.entities import Action, FinishedAction
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.service.payloads.claims import PayloadClaims
from callsheet.scheduler.store.payloads import PayloadStore, PayloadStoreError

_log = structlog.get_logger(__name__)

# An outcome comes a little after its payloads, and is forgotten a little after its time.
MARGIN_S: Final = 3600.0
# Looks per time that a payload is kept without use, and the longest time between two of them.
_LOOKS: Final = 8
_LONGEST_PAUSE_S: Final = 3600.0
# For one job; the rest is done at the next look.
_DEADLINE_S: Final = 600.0


class IdlePayloads:
    """Lets go of idle payloads now and then; see the module's docstring. `clock` returns seconds since the epoch."""

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
