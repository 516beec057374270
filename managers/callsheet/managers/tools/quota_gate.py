"""The way to a provider: one line for each quota, which waits where a call may not begin."""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TypeVar
from weakref import WeakValueDictionary

import anyio
import structlog
from callsheet.managers.tools.errors import QUOTA, ToolFailedError
from callsheet.managers.tools.quotas import NOTHING_TOLD, KeyQuota, QuotaStore, ToldLimits
from callsheet.v1.outcome_pb2 import Failed

T = TypeVar("T")
log = structlog.get_logger(__name__)

# So long the store may take for an answer, and a call to give up its place: well below a manager's `stop_grace_s`.
_ANSWER_S = 2.0
# However little time a call has left: a shorter silence does not show that the store is away.
_SHORTEST_ANSWER_S = 0.25
# Beyond what a call may take: its holder ends it by itself before that.
_HOLD_MARGIN_S = 10.0
# A shorter pause is over before others could serve.
_SHORTEST_PAUSE_S = 1.0
_ASK_STORE_AGAIN_S = 1.0
# A key that some paths refuse, and others do not, is in the log no more often.
_REFUSED_AGAIN_S = 60.0


@dataclass(slots=True)
class QuotaAdmission:
    """A call that may be made now, and what is learned of it.

    Attributes:
        tokens: Tokens that were taken for it.
        told: What the provider's answer said of its limits.
        used: Tokens that it took in the end; None if nobody says.
    """

    tokens: int
    told: ToldLimits = NOTHING_TOLD
    used: int | None = None


class QuotaClock:
    """An attempt's execution clock, which stands while it waits for its quota.

    Attributes:
        job: Whose turn it takes where jobs take turns.
        used: What its calls used: "calls", and the tokens of the contract's Cost as far as the API tells them.
        cpu_s: CPU seconds of a function's process.
    """

    def __init__(self, longest_wait_s: float, job: str = "") -> None:
        """An attempt that starts, how long it may wait, and its job."""
        self.job = job
        self._began = monotonic()
        self._longest_wait_s = longest_wait_s
        self.used: Counter[str] = Counter()
        self.cpu_s = 0.0
        self._waited_s = 0.0
        self._since: float | None = None

    def __call__(self, now: float) -> float:
        """Returns the seconds to charge so far."""
        waits_s = 0.0 if self._since is None else max(now - self._since, 0.0)
        return max(now - self._began - self._waited_s - waits_s, 0.0)

    @contextmanager
    def waiting(self) -> Iterator[float]:
        """Stands for a block; gives until when that may wait, in monotonic seconds."""
        self._since = began = monotonic()
        try:
            yield began + self._longest_wait_s - self._waited_s
        finally:
            self._waited_s, self._since = self._waited_s + monotonic() - began, None


class QuotaGate:
    """One turn for each job after the other; must be used from one event loop.

    Attributes:
        quota: What may be spent.
        problem: Why no call may begin for a while, as a sentence; empty if one may.
        refusal: What the provider holds against the key, as a sentence; empty if nothing. Calls may begin.
        report: Called when what the scheduler is to know of its services has changed.
    """

    def __init__(self, quota: KeyQuota, store: QuotaStore, longest_call_s: float) -> None:
        """Makes the line.

        Args:
            quota: What may be spent.
            store: The truth about what was.
            longest_call_s: How long a call may take.
        """
        self.quota = quota
        self._store = store
        self._hold_s = longest_call_s + _HOLD_MARGIN_S
        # Of each job one call at most stands in the line.
        self._line = anyio.Lock()
        self._turns: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()
        self._freed = anyio.Event()
        self._paused = anyio.Event()
        self._pause_ends = 0.0
        # Why the truth cannot be asked.
        self._away = ""
        self.report: Callable[[], None] = lambda: None
        self.problem = ""
        self.refusal = ""
        self._refused_at = -math.inf

    async def serve(self) -> None:
        """Ends pauses in time, until it is cancelled."""
        while True:
            await self._paused.wait()
            # A pause that grew meanwhile is told again by the next call.
            await anyio.sleep_until(self._pause_ends)
            ask = partial(self._store.settle, self.quota, "", 0, NOTHING_TOLD)
            while self._away and await self._reached(ask()) is None:  # noqa: ASYNC110 - it is another process
                await anyio.sleep(_ASK_STORE_AGAIN_S)
            self._paused, self.problem = anyio.Event(), ""
            self.report()

    def note_refusal(self, refusal: Failed | None) -> None:
        """Notes the failure of a call by what its answer holds against the key; None if the answer took the key."""
        if (refusal is None) == (not self.refusal):
            return
        self.refusal = "" if refusal is None else refusal.message
        if refusal is not None and monotonic() - self._refused_at > _REFUSED_AGAIN_S:
            self._refused_at = monotonic()
            log.warning("key_not_taken", quota=self.quota.name, reason=refusal.reason)
        self.report()

    def _pause(self, wait_s: float) -> None:
        """Reports at once that no call may begin for so long: calls without a dispatch may be served elsewhere."""
        if wait_s >= _SHORTEST_PAUSE_S and not self._paused.is_set():
            self._pause_ends = anyio.current_time() + wait_s
            ends = time.strftime("until %H:%M:%S UTC", time.gmtime(time.time() + wait_s))
            self.problem = f"quota {self.quota.name!r} allows no call {self._away or ends}"
            log.info("quota_pauses", quota=self.quota.name, reason=self.problem)
            self._paused.set()
            self.report()

    async def _reached(self, asking: Awaitable[T], deadline: float = math.inf) -> tuple[T] | None:
        """Returns what the store answers; None and a pause if it cannot be asked, or does not answer in time."""
        try:
            with anyio.fail_after(min(max(deadline - monotonic(), _SHORTEST_ANSWER_S), _ANSWER_S)):
                answer = await asking
        except (ToolFailedError, TimeoutError) as error:
            self._away = f"while {str(error) or 'the Redis of quotas does not answer'}"
            self._pause(_ASK_STORE_AGAIN_S)
            return None
        self._away = ""
        return (answer,)

    @asynccontextmanager
    async def admitted(self, tokens: int, clock: QuotaClock) -> AsyncIterator[QuotaAdmission]:
        """Waits until a call may be made, and notes its end.

        Args:
            tokens: Tokens that it is expected to take; of more than the quota keeps at once, so many are taken.
            clock: Stands meanwhile, and says how long that may be.

        Raises:
            ToolFailedError: It may not begin in time, or the truth cannot be asked.
        """
        most = self.quota.tokens.burst if self.quota.tokens is not None else tokens
        holder, admission, granted = uuid.uuid4().hex, QuotaAdmission(min(tokens, most)), False
        try:
            # A wait that is cut short may have been granted meanwhile.
            with clock.waiting() as deadline:
                await self._enter(holder, admission.tokens, clock.job, deadline)
            granted = True
            clock.used["calls"] += 1
            yield admission
        finally:
            # While the truth cannot be asked, that is no time of the call.
            with clock.waiting():
                await self._settle(holder, admission, granted)

    async def _enter(self, holder: str, tokens: int, job: str, deadline: float) -> None:
        wait_s = 0.0
        with anyio.move_on_after(max(deadline - monotonic(), 0.0)) as time_left:
            async with self._turns.setdefault(job, anyio.Lock()), self._line:
                # It has its turn: each wait below ends in time by itself.
                time_left.deadline = math.inf
                while True:
                    taken = await self._reached(self._store.take(self.quota, holder, tokens, self._hold_s), deadline)
                    (wait_s,) = taken or (_ASK_STORE_AGAIN_S,)
                    self._pause(wait_s)
                    if wait_s <= 0 or monotonic() + wait_s > deadline:
                        break
                    self._freed = anyio.Event()
                    with anyio.move_on_after(wait_s):
                        await self._freed.wait()
        if wait_s > 0 or time_left.cancelled_caught:
            reason, why = "quota_exhausted", f" allows no call for {wait_s:.1f} s, which is beyond its deadline"
            if self._away:
                # Of this kind, as the call was certainly not made: it is tried again even if it may be made only once.
                reason, why, wait_s = "quota_store_unavailable", f" allows no call {self._away}", _ASK_STORE_AGAIN_S
            elif time_left.cancelled_caught:
                why = ": the call's time ran out while it waited for its turn"
            raise ToolFailedError(QUOTA, reason, f"quota {self.quota.name!r}{why}", retry_after_s=wait_s)

    async def _settle(self, holder: str, admission: QuotaAdmission, granted: bool) -> None:
        self._pause(admission.told.blocked_s)
        further = 0 if admission.used is None else admission.used - admission.tokens
        settle = partial(self._store.settle, self.quota, holder, further, admission.told)
        deadline = monotonic() + _ANSWER_S
        with anyio.CancelScope(shield=True):
            while await self._reached(settle(), deadline) is None:
                if not granted or monotonic() + _ASK_STORE_AGAIN_S > deadline:
                    # Its place is given up in time; what the provider said is learned again.
                    log.warning("quota_not_settled", quota=self.quota.name, reason=self._away)
                    break
                await anyio.sleep(_ASK_STORE_AGAIN_S)
        self._freed.set()
