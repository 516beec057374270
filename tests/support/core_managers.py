"""Managers that keep their side of the contract, for tests that do to the core what they like."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.model import ActionKey, ActionKind, FailureKind, Token
from callsheet.scheduler.core.words.registration import SandboxRef

from tests.support.core_world import CoreWorld, FakeManager, ended, sandbox_made_by

STATE_LOST = events.AttemptFailed(FailureKind.INFRA, "state_lost")


@dataclass(eq=False)
class FaithfulManager:
    """Runs what it is sent, keeps ends until they are acknowledged, and lists truly what it has when it registers.

    Attributes:
        received: Dispatched attempts that have not started.
        began: When attempts started.
        running: Started attempts.
        kept: Ends that were not acknowledged.
        held_mib: What sandboxes hold between their actions, as far as it knows.
        starts: Starts by action, over all managers.
    """

    fake: FakeManager
    starts: Counter[ActionKey]
    received: dict[Token, commands.Dispatch] = field(default_factory=dict)
    running: dict[Token, commands.Dispatch] = field(default_factory=dict)
    kept: dict[Token, events.AttemptEnded] = field(default_factory=dict)
    sandboxes: dict[tuple[str, str], str] = field(default_factory=dict)
    held_mib: dict[tuple[str, str], int] = field(default_factory=dict)
    connected: bool = False
    began: dict[Token, float] = field(default_factory=dict)
    _read: int = 0
    _incarnation: int = 0

    @property
    def world(self) -> CoreWorld:
        """The world it lives in."""
        return self.fake.world

    def read(self) -> None:
        """Takes what came over its stream."""
        sent = self.fake.stream.sent
        while self.connected and self._read < len(sent):
            command = sent[self._read]
            self._read += 1
            match command:
                case commands.Dispatch():
                    assert command.token not in self.received | self.running, "a token was given twice"
                    self.received[command.token] = command
                case commands.AcknowledgeEnd(token=token):
                    self.kept.pop(token, None)
                case commands.ReleaseSandbox(sandbox=ref):
                    if self.sandboxes.get((ref.job_id, ref.trajectory_id)) == ref.sandbox_id:
                        del self.sandboxes[ref.job_id, ref.trajectory_id]
                case commands.RefuseManager():
                    self.connected = False
                case _:
                    pass

    def break_stream(self, *, lose_dispatches: bool) -> None:
        """The stream breaks; what was on its way may be lost."""
        self.read()
        if not self.connected:
            return
        self.connected = False
        if lose_dispatches:
            self.received.clear()
        self.fake.disconnect()

    def restart(self) -> None:
        """A new process with nothing left of the old one."""
        self.break_stream(lose_dispatches=True)
        self._incarnation += 1
        self.received, self.running, self.kept, self.sandboxes = {}, {}, {}, {}
        self.began, self.held_mib = {}, {}

    def register(self, *, heartbeat: bool = True) -> None:
        """Registers, resends the ends it kept, and then says that this was all."""
        self.read()
        self._read = 0
        self.connected = True
        running = [
            self.fake.running(grant, execution_s=self.clock(token, 1.0)) for token, grant in self.running.items()
        ]
        running += [self.fake.running(grant, started=False) for grant in self.received.values()]
        sandboxes = [
            SandboxRef(*place, sandbox_id, self.held_mib.get(place, 0)) for place, sandbox_id in self.sandboxes.items()
        ]
        self.fake.join(running, sandboxes, incarnation=str(self._incarnation), heartbeat=False)
        self.read()
        if self.connected:
            for end in list(self.kept.values()):
                self.world.handle(end)
            if heartbeat:
                self.fake.heartbeat()
        self.read()

    def start(self, token: Token) -> None:
        """Begins an attempt that it received."""
        grant = self.received.pop(token)
        self.starts[grant.request.key] += 1
        self.running[token] = grant
        self.began[token] = self.world.now
        if self.connected:
            self.world.handle(events.AttemptStarted(self.fake.manager_id, token))

    def clock(self, token: Token, share: float) -> float:
        """The execution clock of an attempt that was granted a share of the time since it began."""
        return share * (self.world.now - self.began[token])

    def progress(self, token: Token, share: float) -> None:
        """Tells how far an attempt's clock is."""
        if self.connected:
            self.world.handle(events.AttemptProgressed(self.fake.manager_id, token, self.clock(token, share)))

    def end(self, token: Token, result: events.AttemptResult | None = None, *, held_mib: int = 0) -> None:
        """Ends an attempt, well unless told otherwise. A sandbox that is not there is an honest failure.

        What ran in a sandbox, or made it, leaves it with `held_mib`.
        """
        started = token in self.running
        self.began.pop(token, None)
        grant = self.running.pop(token, None) or self.received.pop(token)
        request = grant.request
        place = (request.key.job_id, request.trajectory_id)
        if started and request.needs_sandbox and self.sandboxes.get(place) != grant.sandbox_id:
            result = STATE_LOST
        if not started:
            result = events.AttemptFailed(FailureKind.INFRA, "never_started")
        end = ended(self.fake.manager_id, grant, result, started=started)
        if request.kind is ActionKind.ENV_RESET and isinstance(end.result, events.AttemptSucceeded):
            self.sandboxes[place] = sandbox_made_by(grant)
        if started and place in self.sandboxes and request.in_sandbox and not request.copies_sandbox:
            self.held_mib[place] = end.sandbox_held_mib = held_mib
        self.kept[token] = end
        if self.connected:
            self.world.handle(end)
            self.read()
