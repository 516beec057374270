"""Which pieces of callsheet are on in a simulation, for ablations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from callsheet.benchmarks.simulator.shell.overheads import DEFAULT_OVERHEADS, OverheadModel
from callsheet.managers.sandbox.settings import CoreSharing
from callsheet.scheduler.service.settings import PlannerChoice


class PredictionChoice(Enum):
    """What the planner and node sharing know ahead of an action.

    OFF: nothing. LEARNED: what the predictors learned from those that ended. ORACLE: the truth.
    """

    OFF = "off"
    LEARNED = "learned"
    ORACLE = "oracle"


@dataclass(frozen=True, slots=True)
class CallsheetSettings:
    """The pieces of callsheet, for ablations; by default all are on.

    Attributes:
        solver: Whether CP-SAT improves the elastic planner's plans; without, they are greedy ones.
        core_sharing: As the sandbox manager's: nodes rank their commands, or leave that to the operating system, or the
            scheduler hands out whole cores.
        admission: Whether trajectories wait for their admission; without, all begin as they arrive.
        ageing: Node sharing's beta: how much waiting counts against attained CPU.
        most_load: Load of the cores up to which trajectories are admitted.
        checked: Check the core's invariants after every step (for tests).
    """

    planner: PlannerChoice = PlannerChoice.ELASTIC
    solver: bool = True
    prediction: PredictionChoice = PredictionChoice.LEARNED
    core_sharing: CoreSharing = CoreSharing.RANKED
    admission: bool = True
    ageing: float = 0.2
    most_load: float = 3.0
    overheads: OverheadModel = DEFAULT_OVERHEADS
    checked: bool = False
