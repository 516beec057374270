"""A backend in front of another: it makes no more sandboxes than there is memory for, and fewer after failures."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from time import monotonic

import anyio
import structlog
from callsheet.managers.clock import waiting
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.files.images.source import ImageSource
from callsheet.managers.sandbox.isolation.agent_backend import AgentBackend
from callsheet.managers.sandbox.memory_ledger import MemoryLedger
from callsheet.managers.sandbox.provisioning.creation_pace import CreationPace
from callsheet.managers.sandbox.provisioning.warm_pool import WarmPool
from callsheet.managers.sandbox.sharing.memory_gate import MemoryGate, SandboxRefusedError
from callsheet.timing.waits import Cause

_log = structlog.get_logger(__name__)


class CreationsFailingError(SandboxRefusedError):
    """Making sandboxes failed, and so did the one that tried after the pause: it would fail for others as well."""

    def __init__(self, problem: str) -> None:
        super().__init__("creations_failing", f"sandboxes cannot be made here now: {problem}")


@dataclass(slots=True)
class _Trial:
    """A single try after failures; `problem` is why it failed, once it has ended."""

    ended: anyio.Event = field(default_factory=anyio.Event)
    problem: str = ""


class AdmittingBackend:
    """Makes sandboxes by a backend, as far as memory and the pace of creations allow.

    Attributes:
        memory: What sandboxes wait at before something runs in them.
    """

    def __init__(self, inner: AgentBackend, ledger: MemoryLedger, pace: CreationPace, most_waiting: int) -> None:
        """Args:
        inner: Makes the sandboxes.
        ledger: The memory that they have.
        pace: How fast they are made after failures.
        most_waiting: Creations at once, those that wait included; more are refused.
        """
        self._inner = inner
        self.memory = MemoryGate(ledger)
        self._pace = pace
        self._most_waiting = most_waiting
        self._random = Random()
        self._trial: _Trial | None = None
        self._spares: WarmPool | None = None
        self.creating = 0

    @property
    def is_slow(self) -> bool:
        """Returns whether making sandboxes has failed lately."""
        return self._pace.is_slow

    @property
    def overlays(self) -> bool:
        """Returns whether the inner backend has overlays."""
        return self._inner.overlays

    @property
    def begins_with_copies(self) -> bool:
        """Returns whether the inner backend's sandboxes can begin with copies."""
        return self._inner.begins_with_copies

    @property
    def images(self) -> ImageSource | None:
        """The inner backend's own images."""
        return self._inner.images

    def use_spares(self, spares: WarmPool) -> None:
        """Takes what is to make room when memory runs out."""
        self._spares = spares
        self.memory.make_room_by(spares.give_up)

    def capabilities(self) -> Mapping[str, str]:
        """Returns the abilities of the inner backend, and how much memory its sandboxes may hold."""
        limit, by_need = self.memory.ledger.limit_mib, self.memory.ledger.by_need
        admitted = f"at most {limit} MiB held by all sandboxes" if limit is not None else "as the scheduler books it"
        if by_need:
            admitted = f"by need: {limit} MiB for what idle sandboxes hold and the demand of those that run"
        return {**self._inner.capabilities(), "memory_admission": admitted}

    async def create(self, spec: SandboxSpec, on_lost: Callable[[str], None]) -> AgentSandbox:
        """Makes a sandbox.

        Raises:
            SandboxRefusedError: There is not enough memory and will be none, or too many wait.
            SandboxCreateError: It could not be made.
        """
        if self.creating >= self._most_waiting:
            raise SandboxRefusedError(
                "creations_overloaded", f"{self.creating} sandboxes are being made; at most {self._most_waiting} may be"
            )
        self.creating += 1
        try:
            async with self.memory.files.some():
                await self.memory.admit(spec.sandbox_id, spec)
                try:
                    sandbox = await self._make(lambda: self._inner.create(spec, on_lost))
                except BaseException:
                    self.memory.gone(spec.sandbox_id)
                    raise
        finally:
            self.creating -= 1
            if not self.creating and self._spares is not None:
                self._spares.wake()
        sandbox.on_destroyed(lambda: self.memory.gone(spec.sandbox_id))
        return sandbox

    async def serve(self) -> None:
        """Does what the inner backend does."""
        await self._inner.serve()

    async def close(self) -> None:
        """Closes the inner backend."""
        await self._inner.close()

    async def _make(self, create: Callable[[], Awaitable[AgentSandbox]]) -> AgentSandbox:
        """After a failure one tries, when its time has come; those who wait for it share what becomes of it."""
        while self._pace.is_slow:
            trial = self._trial
            if trial is None:
                return await self._try_alone(create)
            with waiting(Cause.SANDBOX):
                await trial.ended.wait()
            if trial.problem:
                raise CreationsFailingError(trial.problem)
        return await self._try(create)

    async def _try_alone(self, create: Callable[[], Awaitable[AgentSandbox]]) -> AgentSandbox:
        trial = self._trial = _Trial()
        try:
            with waiting(Cause.SANDBOX):
                await anyio.sleep(self._pace.wait_s(monotonic()))
            return await self._try(create)
        except SandboxCreateError as error:
            trial.problem = str(error) or type(error).__name__
            raise CreationsFailingError(trial.problem) from error
        finally:
            self._trial = None
            trial.ended.set()

    async def _try(self, create: Callable[[], Awaitable[AgentSandbox]]) -> AgentSandbox:
        try:
            sandbox = await create()
        except SandboxCreateError as error:
            self._pace.failed(monotonic(), self._random.random())
            _log.warning("sandbox_not_created", failures=self._pace.failures, reason=str(error))
            raise
        self._pace.worked()
        return sandbox
