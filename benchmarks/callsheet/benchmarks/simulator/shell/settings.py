"""Which pieces of callsheet are on in a simulation, and what its machinery adds to an attempt."""

from __future__ import annotations

from dataclasses import dataclass

from callsheet.managers.sandbox.settings import CoreSharing
from callsheet.scheduler.service.settings import PlannerChoice


@dataclass(frozen=True, slots=True)
class OverheadModel:
    """Seconds that callsheet's own machinery adds to an action; all are part of its ACT.

    Calls outside of sandboxes have by default what `callsheet bench dispatch` measures on an idle machine, and a little
    more. Commands in sandboxes have what `callsheet bench sandbox` measures beyond a plain process: 10 to 12 ms.

    Attributes:
        dispatch_s: From the submit to the action's start: two streams and a planning round.
        commit_s: From the command's end to the delivery of its outcome: the journal's group commit, two streams.
        sandbox_s: For a command in a sandbox, besides: its group and its filter. Recorded durations include the start
            of the program, so that is not counted here.
        switch_s: For each change of a running command's lane: writes to its cgroup. They cannot be charged to the
            command concerned, so attempts start later by what they cost on average so far.
        solve_s: From a question to the solver's answer, where a planning round needs one. Waiting for it is queue time.
        pause_s: From an answer to the next question.
    """

    dispatch_s: float = 0.0015
    commit_s: float = 0.0015
    sandbox_s: float = 0.008
    switch_s: float = 0.0001
    solve_s: float = 0.008
    pause_s: float = 0.005

    def before_start_s(self, switches: int, attempts: int, *, in_sandbox: bool) -> float:
        """Seconds by which the next attempt starts later, after so many lane changes of so many attempts."""
        machinery_s = self.dispatch_s + self.commit_s + (self.sandbox_s if in_sandbox else 0.0)
        return machinery_s + self.switch_s * switches / max(attempts, 1)


DEFAULT_OVERHEADS = OverheadModel()


@dataclass(frozen=True, slots=True)
class CallsheetSettings:
    """The pieces of callsheet; by default all are on.

    Attributes:
        solver: Whether CP-SAT improves the elastic planner's plans; without, they are greedy ones.
        core_sharing: As the sandbox manager's: nodes rank their commands, or leave that to the operating system, or the
            scheduler hands out whole cores.
        admission: Whether trajectories wait for their admission; without, all begin as they arrive.
        overheads: Times of the service itself.
    """

    planner: PlannerChoice = PlannerChoice.ELASTIC
    solver: bool = True
    core_sharing: CoreSharing = CoreSharing.RANKED
    admission: bool = True
    overheads: OverheadModel = DEFAULT_OVERHEADS
