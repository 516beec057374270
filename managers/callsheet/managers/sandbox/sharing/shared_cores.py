"""The cores of a manager, shared by all its sandboxes: carries out what node sharing decides."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Hashable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from time import monotonic

import anyio
import structlog
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.errors import SandboxLostError
from callsheet.managers.sandbox.node_sharing import KnownCommand, Lane, LaneChange, NodeSharing, NodeSharingSettings

# The loop looks at least this often, for commands that could not be moved.
_LONGEST_WAIT_S = 1.0
# Reviews are no denser than this: each reads files of the kernel.
_SHORTEST_REVIEW_S = 0.02
# How long the loop waits before it goes on after an error of its own.
_AFTER_ERROR_S = 0.5
_LAST_MOVES_S = 2.0

_log = structlog.get_logger(__name__)


class SharedClock:
    """Execution clock of an attempt: all time but the time that node sharing did not grant to its command."""

    def __init__(self, now: float) -> None:
        """An attempt that starts; monotonic seconds."""
        self._counted_s = 0.0
        self._outside_since = now
        self._inside: Callable[[float], float] | None = None

    def __call__(self, now: float) -> float:
        """Returns the seconds to charge so far."""
        since = max(now - self._outside_since, 0.0) if self._inside is None else self._inside(now)
        return self._counted_s + since

    def enter(self, now: float, inside: Callable[[float], float]) -> None:
        """From now on another clock counts."""
        self._counted_s = self(now)
        self._inside = inside

    def leave(self, now: float) -> None:
        """Undoes `enter`; what the other clock counted stays."""
        self._counted_s = self(now)
        self._inside, self._outside_since = None, now


@dataclass(slots=True, eq=False)
class SharedCommand:
    """A command that takes part.

    Attributes:
        among: The shared cores when it was put on its own; others may be shared since.
        baseline_s: CPU seconds of its sandbox before node sharing counted it.
        attained_s: CPU seconds since then, as of the last measurement.
        width: Cores that it is confined to; 0 for all, so that none idles while two commands are on another.
        wanted: The lane it is to be in.
        turn: Held while its sandbox is moved; whoever comes last moves it to the newest lane.
    """

    command: KnownCommand
    sandbox: AgentSandbox
    among: frozenset[int]
    baseline_s: float
    attained_s: float = 0.0
    width: int = 0
    wanted: Lane = Lane.FOREGROUND
    turn: anyio.Lock = field(default_factory=anyio.Lock)


class SharedCores:
    """The commands that run now, each in its lane.

    Commands come and go by `taking_part`; `serve` moves the others when ranks change. Without `serve` nobody is moved
    after its start, and all goes on. An error of `serve` puts every command into the foreground and begins afresh.
    """

    def __init__(self, cores: frozenset[int], settings: NodeSharingSettings) -> None:
        """Args: cores: Until `use`."""
        self.cores = cores
        self._next = 0
        self._settings = settings
        self._sharing = NodeSharing(len(cores), settings)
        self._commands: dict[Hashable, SharedCommand] = {}
        # Execution clocks of a `NodeSharing` that was replaced, by command.
        self._earlier_s: dict[Hashable, float] = {}
        self._changed = anyio.Event()
        # When `serve` looks next.
        self._looks_at = 0.0

    def use(self, cores: frozenset[int]) -> None:
        """Shares other cores from now on; `serve` puts what runs there."""
        if cores == self.cores:
            return
        if len(cores) != len(self.cores):
            self._begin_afresh(len(cores))
        self.cores = cores
        self._changed.set()

    @asynccontextmanager
    async def taking_part(
        self, command: KnownCommand, sandbox: AgentSandbox, clock: SharedClock, among: frozenset[int]
    ) -> AsyncIterator[None]:
        """Lets a command share the cores for the length of a block; it is in its lane when the block begins.

        Args:
            command: Its id must not take part already.
            sandbox: Where it runs; nothing of it may run before.
            clock: Charged with what is granted.
            among: The shared cores when its sandbox was put on its own.

        Raises:
            SandboxLostError: The sandbox is gone.
        """
        shared = SharedCommand(command, sandbox, among, await sandbox.attained_s())
        name = command.command_id
        changes = self._sharing.start(command, monotonic())
        self._commands[name] = shared
        try:
            self._note(changes)
            clock.enter(monotonic(), lambda now: self._clock(name, now))
            await self._move(shared)
            yield
        finally:
            now = monotonic()
            clock.leave(now)
            del self._commands[name]
            self._earlier_s.pop(name, None)
            self._note(self._sharing.end(name, now))

    async def resize(self, name: Hashable, width: int, predicted_use: float) -> None:
        """Confines a command to so many cores from now on; one that does not take part is left alone.

        Raises:
            SandboxLostError: Its sandbox is gone.
        """
        shared = self._commands.get(name)
        if shared is not None:
            shared.width = width
            self._note(self._sharing.resize(name, predicted_use, monotonic()))
            await self._put_on_cores(shared)

    async def serve(self) -> None:
        """Moves commands between the lanes, for ever; when it is cancelled all end up in the foreground."""
        try:
            while True:
                try:
                    await self._serve()
                except Exception as error:
                    _log.error("core_sharing_failed", commands=len(self._commands), exc_info=error)
                    self._begin_afresh(len(self.cores))
                    await anyio.sleep(_AFTER_ERROR_S)
        finally:
            for shared in self._commands.values():
                shared.wanted = Lane.FOREGROUND
            with anyio.move_on_after(_LAST_MOVES_S, shield=True):
                await self._carry_out()

    async def _serve(self) -> None:
        while True:
            self._changed = anyio.Event()
            await self._carry_out()
            review = self._sharing.next_review(monotonic())
            after_s = _LONGEST_WAIT_S if review is None else max(review - monotonic(), _SHORTEST_REVIEW_S)
            after_s = min(after_s, _LONGEST_WAIT_S)
            self._looks_at = monotonic() + after_s
            with anyio.move_on_after(after_s):
                await self._changed.wait()
            if review is not None and review <= monotonic():
                await self._review()

    async def _review(self) -> None:
        attained: dict[Hashable, float] = {}
        for name in self._sharing.due(monotonic()):
            shared = self._commands.get(name)
            if shared is not None:
                try:
                    shared.attained_s = await shared.sandbox.attained_s() - shared.baseline_s
                    attained[name] = shared.attained_s
                except (SandboxLostError, OSError) as error:
                    _log.debug("not_measured", sandbox=shared.sandbox.spec.sandbox_id, reason=str(error))
        self._note(self._sharing.measured(attained, monotonic()))

    async def _carry_out(self) -> None:
        for shared in list(self._commands.values()):
            if shared.among != self.cores:
                await self._follow_cores(shared)
            await self._move(shared)

    async def _move(self, shared: SharedCommand) -> None:
        """Moves a command's sandbox to the lane that is wanted; one that cannot be moved stays where it is."""
        if shared.sandbox.lane is shared.wanted and not shared.turn.locked():
            return
        async with shared.turn:
            try:
                await shared.sandbox.set_lane(shared.wanted)
            except (SandboxLostError, OSError) as error:
                _log.warning("lane_not_changed", sandbox=shared.sandbox.spec.sandbox_id, reason=str(error))

    async def _follow_cores(self, shared: SharedCommand) -> None:
        """Puts a command on cores that are shared now; one that cannot be put there stays where it is."""
        try:
            await self._put_on_cores(shared)
        except (SandboxLostError, OSError) as error:
            _log.warning("cores_not_changed", sandbox=shared.sandbox.spec.sandbox_id, reason=str(error))

    async def _put_on_cores(self, shared: SharedCommand) -> None:
        # Before the wait: what `use` changes meanwhile is a change for this command as well.
        shared.among = self.cores
        await shared.sandbox.grant(self._some_cores(shared.width))

    def _some_cores(self, width: int) -> frozenset[int]:
        """Returns so many cores, in turn; all of them for a width of 0."""
        if not 0 < width < len(self.cores):
            return self.cores
        inside = sorted(self.cores)
        chosen = [inside[(self._next + place) % len(inside)] for place in range(width)]
        self._next = (self._next + width) % len(inside)
        return frozenset(chosen)

    def _note(self, changes: Iterable[LaneChange]) -> None:
        """Notes lanes that are wanted; `serve` carries them out, and is woken where it would come too late."""
        for change in changes:
            shared = self._commands.get(change.command_id)
            if shared is not None:
                shared.wanted = change.lane
                if shared.sandbox.lane is not change.lane or shared.turn.locked():
                    self._changed.set()
        review = self._sharing.next_review(monotonic())
        if review is not None and review < self._looks_at:
            self._changed.set()

    def _clock(self, name: Hashable, now: float) -> float:
        return self._earlier_s.get(name, 0.0) + self._sharing.execution_clock(name, now)

    def _begin_afresh(self, cores: int) -> None:
        """Replaces node sharing; clocks go on, ranks begin anew."""
        now = monotonic()
        earlier = {name: self._clock(name, now) for name in self._commands}
        self._earlier_s, self._sharing = earlier, NodeSharing(cores, self._settings)
        for shared in self._commands.values():
            shared.baseline_s += shared.attained_s
            shared.attained_s = 0.0
            shared.wanted = Lane.FOREGROUND
            self._note(self._sharing.start(shared.command, now))
