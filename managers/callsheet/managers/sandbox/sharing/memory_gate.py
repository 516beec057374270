"""The line before a node's memory: what is to run waits here, as its ledger says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from time import monotonic

import anyio
from callsheet.managers.clock import standing_still
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.errors import ReasonedError, SandboxCreateError
from callsheet.managers.sandbox.memory_ledger import MemoryLedger, Stay
from callsheet.managers.sandbox.open_file_room import OpenFileRoom
from callsheet.managers.sandbox.stopping import unless_stopped
from callsheet.timing.waits import Cause


class SandboxRefusedError(ReasonedError, SandboxCreateError):
    """This manager does not take on another sandbox now; another one may.

    Attributes:
        reason: "memory_exhausted", "creations_overloaded" or "creations_failing".
    """


@dataclass(slots=True)
class _Turn:
    """One in the line: `came` is set once it may go, is gone, or is refused."""

    came: anyio.Event = field(default_factory=anyio.Event)
    refused: bool = False


class MemoryGate:
    """Holds back what the memory has no room for; what is kept for life is refused instead.

    Attributes:
        ledger: Of all sandboxes; only this changes it.
        files: The room for open files, which what runs needs as well.
    """

    def __init__(self, ledger: MemoryLedger) -> None:
        self.ledger = ledger
        self.files = OpenFileRoom()
        self._turns: dict[str, _Turn] = {}
        self._make_room: Callable[[Callable[[], bool]], Awaitable[None]] | None = None
        # Those that did not stand still in time, with a mark of that moment.
        self._unknown: dict[str, tuple[AgentSandbox, object]] = {}

    def make_room_by(self, give_up: Callable[[Callable[[], bool]], Awaitable[None]]) -> None:
        """Takes what gives up spares before anybody waits: until the function that it gets says that it is enough."""
        self._make_room = give_up

    async def admit(self, sandbox_id: str, spec: SandboxSpec) -> None:
        """Waits until a sandbox may be made, or one that was ready be taken; it counts as running then.

        Raises:
            SandboxRefusedError: It cannot wait for its memory, or would do so for ever.
        """
        ledger, spare = self.ledger, spec.terms.stay is Stay.SPARE
        if not ledger.fits_alone(spec.memory_mib, spec.terms):
            raise self._refusal(spec)
        ledger.ask(sandbox_id, spec.memory_mib, spec.terms)
        try:
            turn = self._turns[sandbox_id] = _Turn()
            if not await self._take(turn, waits=ledger.by_need and not spare, gives_up=not spare):
                raise self._refusal(spec)
        except BaseException:
            self.gone(sandbox_id)
            raise
        finally:
            self._turns.pop(sandbox_id, None)

    async def thaw(self, sandbox_id: str, stop: anyio.Event, expected_s: float) -> None:
        """Waits until something may run in a sandbox, which is expected to take so long; `leave` follows in any case.

        Raises:
            StoppedError: `stop` was set before.
        """
        self._unknown.pop(sandbox_id, None)
        if self.ledger.thaw(sandbox_id, expected_s):
            turn = self._turns[sandbox_id] = _Turn()
            try:
                self._advance()
                if not turn.came.is_set():
                    await unless_stopped(stop, lambda: self._take(turn, waits=True, gives_up=True))
            finally:
                del self._turns[sandbox_id]
                self.ledger.withdraw(sandbox_id)
                self._advance()

    def leave(self, sandbox: AgentSandbox, held_mib: int | None) -> None:
        """Notes that nothing runs in a sandbox any more, and what it holds; None if that is not known."""
        sandbox_id = sandbox.spec.sandbox_id
        if held_mib is None and self.ledger.by_need and sandbox.loss is None:
            self._unknown[sandbox_id] = sandbox, object()
        self.ledger.rest(sandbox_id, held_mib)
        self._advance()

    async def rest(self, sandbox: AgentSandbox) -> None:
        """Freezes a sandbox that was made, for what it does not hold; does nothing where that gains nothing."""
        if self.ledger.by_need:
            self.leave(sandbox, await sandbox.pause())

    async def settle(self) -> None:
        """Looks again at what time changes: who may pass whom, and sandboxes that did not stand still in time.

        Those have their whole demand until then.
        """
        self._advance()
        for sandbox_id, marked in list(self._unknown.items()):
            held_mib = await marked[0].held_mib()
            if held_mib is not None and self._unknown.get(sandbox_id) is marked:
                del self._unknown[sandbox_id]
                self.leave(marked[0], held_mib)

    def gone(self, sandbox_id: str) -> None:
        """Takes back what a sandbox had, and ends its wait."""
        self._unknown.pop(sandbox_id, None)
        self.ledger.give_back(sandbox_id)
        if (turn := self._turns.get(sandbox_id)) is not None:
            turn.came.set()
        self._advance()

    async def _take(self, turn: _Turn, *, waits: bool, gives_up: bool) -> bool:
        """Waits until it is the turn of one in the line, unless that must not wait; returns whether it may go."""
        self._advance()
        if not turn.came.is_set():
            with standing_still(Cause.MEMORY):
                if gives_up and self._make_room is not None:
                    await self._make_room(turn.came.is_set)
                if waits:
                    await turn.came.wait()
        return turn.came.is_set() and not turn.refused

    def _advance(self) -> None:
        for admitted in self.ledger.advance(monotonic()):
            self._turns[admitted].came.set()
        while (stuck := self.ledger.stuck()) is not None:
            self.ledger.withdraw(stuck)
            self._turns[stuck].refused = True
            self._turns[stuck].came.set()

    def _refusal(self, spec: SandboxSpec) -> SandboxRefusedError:
        return SandboxRefusedError(
            "memory_exhausted",
            f"a sandbox of {spec.memory_mib} MiB does not fit: sandboxes hold {self.ledger.booked_mib} MiB of "
            f"{self.ledger.limit_mib} MiB",
        )
