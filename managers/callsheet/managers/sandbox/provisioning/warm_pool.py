"""Sandboxes that are ready before anybody asks for them."""

from __future__ import annotations

import uuid
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Generic, TypeVar

import anyio
import structlog
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.memory_ledger import MemoryTerms, Stay

_Kind = TypeVar("_Kind", bound=Hashable)

_MOST_KINDS = 256
_MOST_ARRIVALS = 512

# Groups of siblings arrive within this, and a pool is full again after about as long.
_WINDOW_S = 10.0
_MEMORY_S = 300.0
_REVIEW_S = 5.0


def pool_size(arrivals: Sequence[float], now: float, *, window_s: float, memory_s: float) -> int:
    """Returns how many to keep ready: the most that were asked for within a window, among those that are remembered.

    Demand comes in groups (the siblings of a prompt begin together), so a mean rate would keep far too few. A demand
    older than `memory_s` counts for nothing, and a younger one by how much of that time is left.

    Args:
        arrivals: When one was asked for, ascending, in seconds.
        now: Not before the last of them.
        window_s: About as long as it takes to make the pool full again.
        memory_s: How long a demand is remembered.
    """
    wanted = 0.0
    first = 0
    for last, at in enumerate(arrivals):
        while arrivals[first] < at - window_s:
            first += 1
        weight = max(0.0, 1.0 - (now - at) / memory_s)
        wanted = max(wanted, weight * (last - first + 1))
    # One that is asked for again and again is worth one; one that was asked for a single time is not.
    return round(wanted) if len(arrivals) > 1 else 0


@dataclass(frozen=True, slots=True)
class Share:
    """Sandboxes of a kind to keep ready.

    Attributes:
        wanted: How many.
        memory_mib: What each holds.
        last_asked: When one was asked for last.
    """

    wanted: int
    memory_mib: int
    last_asked: float


def share_memory(kinds: Mapping[_Kind, Share], memory_mib: int) -> dict[_Kind, int]:
    """Returns how many of each kind fit into a memory: what was asked for last comes first."""
    shares = {}
    for kind, share in sorted(kinds.items(), key=lambda item: -item[1].last_asked):
        count = min(share.wanted, memory_mib // share.memory_mib)
        if count > 0:
            shares[kind] = count
            memory_mib -= count * share.memory_mib
    return shares


@dataclass(slots=True)
class DemandHistory(Generic[_Kind]):
    """When each kind was asked for; bounded, the kinds that were not asked for the longest are forgotten first."""

    _arrivals: OrderedDict[_Kind, deque[float]] = field(default_factory=OrderedDict)

    def note(self, kind: _Kind, now: float) -> None:
        """Notes that one was asked for."""
        times = self._arrivals.setdefault(kind, deque(maxlen=_MOST_ARRIVALS))
        self._arrivals.move_to_end(kind)
        times.append(now)
        while len(self._arrivals) > _MOST_KINDS:
            self._arrivals.popitem(last=False)

    def forget(self, kind: _Kind) -> None:
        """Drops a kind that cannot be made any more."""
        self._arrivals.pop(kind, None)

    def sizes(self, now: float, *, window_s: float, memory_s: float) -> dict[_Kind, tuple[int, float]]:
        """Returns how many of each kind to keep ready, with when it was asked for last."""
        return {
            kind: (pool_size(list(times), now, window_s=window_s, memory_s=memory_s), times[-1])
            for kind, times in self._arrivals.items()
        }


_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Shelf:
    """The ready sandboxes of one kind, the newest last; `specification` makes another."""

    specification: SandboxSpec
    sandboxes: list[AgentSandbox] = field(default_factory=list)


class WarmPool:
    """Keeps sandboxes ready by recent demand, within a memory; one is made at a time, when nobody else waits for one.

    A kind is everything a sandbox was made as, but its id and its cores.
    """

    def __init__(
        self,
        memory_mib: int,
        make: Callable[[SandboxSpec], Awaitable[AgentSandbox | None]],
        is_busy: Callable[[], bool],
    ) -> None:
        """Args:
        memory_mib: What all ready sandboxes may hold together; 0 keeps none.
        make: Makes a sandbox; None if its kind cannot be made any more.
        is_busy: Whether sandboxes are being made for somebody who waits.
        """
        self._memory_mib = memory_mib
        self._make = make
        self._is_busy = is_busy
        self._history: DemandHistory[SandboxSpec] = DemandHistory()
        self._shelves: dict[SandboxSpec, _Shelf] = {}
        self._changed = anyio.Event()
        self._closed = False

    @property
    def ready(self) -> int:
        """How many are ready."""
        return sum(len(shelf.sandboxes) for shelf in self._shelves.values())

    async def take(self, spec: SandboxSpec) -> AgentSandbox | None:
        """Returns a ready sandbox of a kind, or None; in both cases it is noted that one was asked for."""
        if not self._memory_mib:
            return None
        kind = replace(spec, sandbox_id="", cores=frozenset(), terms=MemoryTerms())
        self._history.note(kind, monotonic())
        self._changed.set()
        shelf = self._shelves.setdefault(kind, _Shelf(spec))
        while shelf.sandboxes:
            sandbox = shelf.sandboxes.pop()
            if sandbox.loss is None:
                return sandbox
            await sandbox.destroy()
        return None

    async def give_up(self, is_enough: Callable[[], bool]) -> None:
        """Destroys ready sandboxes until there is enough memory, or none is left."""
        # A copy: another kind may be asked for while one is destroyed.
        for shelf in list(self._shelves.values()):
            while shelf.sandboxes and not is_enough():
                await shelf.sandboxes.pop(0).destroy()

    def wake(self) -> None:
        """Lets the pool be filled: nobody waits for a sandbox any more."""
        self._changed.set()

    async def serve(self) -> None:
        """Fills and empties the pool until it is cancelled."""
        while self._memory_mib and not self._closed:
            self._changed = anyio.Event()
            await self._review()
            with anyio.move_on_after(_REVIEW_S):
                await self._changed.wait()

    async def close(self) -> None:
        """Destroys all that are ready."""
        self._closed = True
        self._changed.set()
        async with anyio.create_task_group() as tasks:
            for shelf in self._shelves.values():
                while shelf.sandboxes:
                    tasks.start_soon(shelf.sandboxes.pop().destroy)

    async def _review(self) -> None:
        """Makes the pool what recent demand wants."""
        wanted = self._wanted()
        for kind, shelf in list(self._shelves.items()):
            while len(shelf.sandboxes) > wanted.get(kind, 0):
                await shelf.sandboxes.pop(0).destroy()
            if not shelf.sandboxes and kind not in wanted:
                del self._shelves[kind]
        for kind, count in wanted.items():
            found = self._shelves.get(kind)
            while found is not None and len(found.sandboxes) < count and not self._is_busy() and not self._closed:
                if not await self._add(kind, found):
                    break

    def _wanted(self) -> dict[SandboxSpec, int]:
        sizes = self._history.sizes(monotonic(), window_s=_WINDOW_S, memory_s=_MEMORY_S)
        shares = {kind: Share(count, kind.memory_mib, asked) for kind, (count, asked) in sizes.items()}
        return share_memory(shares, self._memory_mib)

    async def _add(self, kind: SandboxSpec, shelf: _Shelf) -> bool:
        try:
            sandbox = await self._make(
                replace(shelf.specification, sandbox_id=uuid.uuid4().hex, terms=MemoryTerms(Stay.SPARE))
            )
        except SandboxCreateError as error:
            _log.info("warm_sandbox_not_created", reason=str(error))
            return False
        if sandbox is None:
            self._history.forget(kind)
            return False
        if self._closed:
            await sandbox.destroy()
            return False
        shelf.sandboxes.append(sandbox)
        return True
