"""What is run beside a comparison: callsheet without each of its pieces, and on the cores that give equal ACT."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.simulator.comparison.runs import Run, run_all
from callsheet.benchmarks.simulator.comparison.settings import ComparisonSettings
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings, PredictionChoice
from callsheet.managers.sandbox.settings import CoreSharing
from callsheet.scheduler.service.settings import PlannerChoice

OURS: Final = "callsheet"
# A search for equal ACT stops when it has the number of cores to within this part.
_PRECISION: Final = 0.03
# Figures within this factor are equal: a reservation has no overhead here, and callsheet has one for each action.
_EQUAL: Final = 1.01


@dataclass(frozen=True, slots=True)
class EqualAct:
    """How many cores a policy needs to be equal to another, or better, in mean and p99 ACT."""

    policy: str
    cores: int
    against: str
    against_cores: int

    @property
    def saved(self) -> float:
        """Part of the other's cores that are not needed."""
        return 1.0 - self.cores / self.against_cores


def cores_for_equal_act(
    settings: ComparisonSettings, against: str, against_cores: int, progress: Progress
) -> EqualAct | None:
    """The fewest cores on which callsheet equals a policy with `against_cores` cores; None if none are.

    Mean and p99 ACT of the first seed are compared; they may be worse by a hundredth. The wait to start is no part of
    ACT, so the other policy should have cores enough that nothing waits to start.
    """
    seed = settings.seeds[0]
    (reference,) = run_all([Run(against, replace(settings.source, cores=against_cores), seed)], 1, progress)
    if reference is None:
        return None

    def good(cores: int) -> bool:
        (result,) = run_all([Run(OURS, replace(settings.source, cores=cores), seed)], 1, progress)
        return (
            result is not None
            and result.figures.act_mean_s <= _EQUAL * reference.figures.act_mean_s
            and result.figures.act_p99_s <= _EQUAL * reference.figures.act_p99_s
        )

    if not good(against_cores):
        return None
    low, high = 0, against_cores
    while high - low > max(1, _PRECISION * high):
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return EqualAct(OURS, high, against, against_cores)


ABLATIONS: Final[Mapping[str, CallsheetSettings]] = {
    "greedy in place of CP-SAT": CallsheetSettings(solver=False),
    "first come in place of the elastic planner": CallsheetSettings(planner=PlannerChoice.FIRST_COME),
    "no prediction": CallsheetSettings(prediction=PredictionChoice.OFF),
    "perfect prediction": CallsheetSettings(prediction=PredictionChoice.ORACLE),
    "no node sharing: the operating system shares": CallsheetSettings(core_sharing=CoreSharing.PLAIN),
    "no sharing at all: commands have whole cores": CallsheetSettings(core_sharing=CoreSharing.RESERVED),
    "no admission": CallsheetSettings(admission=False),
}
"""What callsheet is without each of its pieces, or with a perfect one."""
