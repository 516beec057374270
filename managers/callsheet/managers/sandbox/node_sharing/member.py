"""One command as node sharing keeps it: its clock, its attained CPU, its place."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.managers.sandbox.node_sharing.command import KnownCommand, Lane
from callsheet.managers.sandbox.node_sharing.rank import NEW_LEVEL, OVERDUE_LEVEL


@dataclass(slots=True, eq=False)
class RunningCommand:
    """A command that runs.

    `granted` below is the foreground's virtual time, see `NodeSharing`: it passes like time while the foreground fits
    the cores, and slower while it does not.

    Attributes:
        ageing: By how much a second of waiting lowers its rank.
        use: Cores that it is now thought to use in the foreground.
        began: Its start: wait = now - began - clock.
        lane: None on its way into a lane.
        level: Of what it has attained, or why it is in the foreground; lower goes first.
        overdue: It is in the background, and its rank has fallen so far that it has a claim to the foreground.
        attained_s: CPU seconds, as of the last measurement or lane change.
        charged_s: Execution clock, likewise.
        seen: Time, or `granted` in the foreground, of the last measurement or lane change.
        unmeasured_s: Seconds in the background from which no measurement has been taken yet.
        quantum_ends_s: Attained CPU seconds at which it is compared with others.
        stall_mark_s: Attained CPU seconds when its stall began to count.
        stall_ends: When it must have progressed; infinite in the foreground.
        turn: It is in the foreground for a turn that ends a stall.
        entry: Number of its valid entry in a queue.
    """

    command: KnownCommand
    ageing: float
    use: float
    began: float
    lane: Lane | None = None
    level: int = NEW_LEVEL
    overdue: bool = False
    attained_s: float = 0.0
    charged_s: float = 0.0
    seen: float = 0.0
    unmeasured_s: float = 0.0
    quantum_ends_s: float = 0.0
    stall_mark_s: float = 0.0
    stall_ends: float = float("inf")
    turn: bool = False
    entry: int = 0

    @property
    def weighted_s(self) -> float:
        """Attained CPU seconds as its rank counts them."""
        return self._weighted(self.attained_s)

    @property
    def order(self) -> tuple[int, float]:
        """Its place among others: by level, and within one first come, first served."""
        return self.level, self.began

    @property
    def displaceable(self) -> bool:
        """Returns whether a command of a lower level, or an overdue one, may take its place in the foreground."""
        return self.command.demotable and self.lane is Lane.FOREGROUND and self.level > NEW_LEVEL

    @property
    def has_claim(self) -> bool:
        """Returns whether it belongs in the foreground whatever others do: it cannot be demoted, is new or overdue."""
        if self.lane is None:
            return False
        return self.overdue or not self.command.demotable or self.level <= OVERDUE_LEVEL

    def clock(self, granted: float) -> float:
        """Returns its execution clock: time granted in the foreground, and CPU received in the background."""
        return self.charged_s + (granted - self.seen if self.lane is Lane.FOREGROUND else 0.0)

    def wait(self, now: float, granted: float) -> float:
        """Returns the seconds since its start that its clock did not count."""
        return max(0.0, now - self.began - self.clock(granted))

    def rank(self, now: float, granted: float) -> float:
        """Returns its rank, in CPU seconds; in the foreground its CPU is extrapolated from the last measurement."""
        return self._weighted(self.extrapolated(granted)) - self.ageing * self.wait(now, granted)

    def _weighted(self, attained_s: float) -> float:
        return attained_s / self.command.weight

    def extrapolated(self, granted: float) -> float:
        """Returns the CPU seconds that it should have attained by now."""
        if self.lane is Lane.FOREGROUND:
            return self.attained_s + self.use * (granted - self.seen)
        return self.attained_s

    def take_foreground_measurement(self, attained_s: float, granted: float, cores: float, memory_s: float) -> None:
        """Notes CPU seconds measured in the foreground, and learns its use from them.

        Args:
            attained_s: What was measured.
            granted: Now.
            cores: The node's; no command uses more.
            memory_s: Weight of what its use was thought to be, in seconds.
        """
        passed = granted - self.seen
        gained = max(0.0, attained_s - self.attained_s)
        if self.unmeasured_s > 0:
            # Some of it is from before its promotion; there is no telling what its use was.
            self._charge_background(gained - self.use * passed, self.unmeasured_s)
        else:
            self.use = min(cores, (self.use * memory_s + gained) / (memory_s + passed))
        self.charged_s += passed
        self.attained_s = max(self.attained_s, attained_s)
        self.seen = granted

    def take_background_measurement(self, attained_s: float, now: float) -> None:
        """Notes CPU seconds measured in the background; less than was extrapolated at its demotion is taken back."""
        self._charge_background(attained_s - self.attained_s, self.unmeasured_s + max(0.0, now - self.seen))
        self.attained_s = attained_s
        self.seen = now

    def _charge_background(self, gained_s: float, within_s: float) -> None:
        """Charges the time in which it would have got CPU of the background in the foreground."""
        self.charged_s += min(within_s, max(0.0, gained_s) / max(1.0, self.use))
        self.unmeasured_s = 0.0

    def leave_background(self, now: float) -> None:
        """Keeps in mind what has not been measured."""
        self.unmeasured_s += max(0.0, now - self.seen)

    def settle_foreground(self, granted: float) -> None:
        """Takes its CPU as extrapolated, where there is no measurement."""
        self.attained_s, self.charged_s, self.seen = self.extrapolated(granted), self.clock(granted), granted
