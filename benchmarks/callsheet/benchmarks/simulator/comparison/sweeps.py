"""Series of runs in which one thing changes: the number of cores, or callsheet's ageing setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.simulator.comparison.load import load_of
from callsheet.benchmarks.simulator.comparison.runs import Run, run_all
from callsheet.benchmarks.simulator.comparison.settings import ComparisonSettings
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings, PredictionChoice
from callsheet.managers.sandbox.settings import CoreSharing
from callsheet.scheduler.service.settings import PlannerChoice

OURS: Final = "callsheet"
CORE_FACTORS: Final = (0.5, 0.75, 1.0, 1.5, 2.5, 5.0)
BETAS: Final = (0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
# A search for equal ACT stops when it has the number of cores to within this part.
_PRECISION: Final = 0.03
# Figures within this factor are equal: a reservation has no overhead here, and callsheet has one for each action.
_EQUAL: Final = 1.01


@dataclass(frozen=True, slots=True)
class CoresPoint:
    """One policy on one number of cores."""

    cores: int
    rho: float
    act_mean_s: float
    act_p99_s: float
    start_wait_mean_s: float


@dataclass(frozen=True, slots=True)
class AgeingPoint:
    """Callsheet with one ageing setting; `span` is the step in seconds or the trajectories per hour."""

    beta: float
    act_mean_s: float
    act_p99_s: float
    span: float


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


def sweep_cores(
    settings: ComparisonSettings, cores: int, policies: Sequence[str], progress: Progress
) -> dict[str, list[CoresPoint]]:
    """Runs the policies on fewer and on more cores than there are, with the first seed."""
    counts = sorted({max(1, round(cores * factor)) for factor in CORE_FACTORS})
    sources = [replace(settings.source, cores=count) for count in counts]
    runs = [Run(name, source, settings.seeds[0]) for name in policies for source in sources]
    done = run_all(runs, settings.processes, progress)
    rho = {source: load_of(source.scenario(settings.seeds[0])).rho for source in sources}
    points: dict[str, list[CoresPoint]] = {name: [] for name in policies}
    for run, result in zip(runs, done, strict=True):
        if result is not None:
            cores, figures = run.source.cores or 0, result.figures
            point = CoresPoint(cores, rho[run.source], figures.act_mean_s, figures.act_p99_s, figures.start_wait_mean_s)
            points[run.policy].append(point)
    return {name: line for name, line in points.items() if line}


def sweep_ageing(settings: ComparisonSettings, progress: Progress) -> list[AgeingPoint]:
    """Runs callsheet with several ageing settings and the first seed."""
    runs = [
        Run(OURS, settings.source, settings.seeds[0], CallsheetSettings(ageing=beta), f"{OURS} with beta {beta:g}")
        for beta in BETAS
    ]
    points = []
    for beta, result in zip(BETAS, run_all(runs, settings.processes, progress), strict=True):
        if result is not None:
            figures = result.figures
            span = figures.step_s if figures.step_s is not None else figures.trajectories_per_hour
            points.append(AgeingPoint(beta, figures.act_mean_s, figures.act_p99_s, span or 0.0))
    return points


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
    "price without expected arrivals": CallsheetSettings(expected_arrivals=False),
    "no prediction": CallsheetSettings(prediction=PredictionChoice.OFF),
    "perfect prediction": CallsheetSettings(prediction=PredictionChoice.ORACLE),
    "no node sharing: the operating system shares": CallsheetSettings(core_sharing=CoreSharing.PLAIN),
    "no sharing at all: commands have whole cores": CallsheetSettings(core_sharing=CoreSharing.RESERVED),
    "the same, price without expected arrivals": CallsheetSettings(
        core_sharing=CoreSharing.RESERVED, expected_arrivals=False
    ),
    "no admission": CallsheetSettings(admission=False),
}
"""What callsheet is without each of its pieces, or with a perfect one."""
