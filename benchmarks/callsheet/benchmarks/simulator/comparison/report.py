"""A comparison as data: the policies' figures, the bounds, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from callsheet.benchmarks.measuring.statistics import rounded, significant
from callsheet.benchmarks.simulator.comparison.figures import Figures, JobFigures, PolicyResult, Ratio, paired_ratio
from callsheet.benchmarks.simulator.comparison.load import Load
from callsheet.benchmarks.simulator.comparison.settings import ComparisonSettings
from callsheet.benchmarks.simulator.comparison.sweeps import OURS, EqualAct
from callsheet.benchmarks.simulator.scenario import Mode, ScenarioJob

_SPAN_KEYS: Final = {Mode.ONESHOT: "step_s", Mode.SUSTAINED: "trajectories_per_hour"}


@dataclass(slots=True)
class ComparisonReport:
    """One run of `callsheet bench sim`.

    Attributes:
        jobs: Of the scenario.
        results: By policy, in the order asked for; None where a policy does not apply.
        bounds: What no policy can beat, by name; means over the seeds. Those of ACT are of the actions that were
            measured, the least over the policies.
        ablations: Callsheet without one of its pieces, by what is missing.
        equal_act: How many cores callsheet needs for the ACT of a reservation; None where nobody asked, or none are.
        wall_s: Real seconds that everything took.
    """

    settings: ComparisonSettings
    load: Load
    cores: int
    jobs: tuple[ScenarioJob, ...]
    results: Mapping[str, PolicyResult | None]
    bounds: Mapping[str, float | None]
    ablations: Mapping[str, PolicyResult] = field(default_factory=dict)
    equal_act: EqualAct | None = None
    wall_s: float = 0.0

    @property
    def span_key(self) -> str:
        """The figure of the whole run that the mode has."""
        return _SPAN_KEYS[self.settings.source.mode]

    @property
    def applying(self) -> dict[str, PolicyResult]:
        """The policies that apply."""
        return {name: result for name, result in self.results.items() if result is not None}

    def ratios(self) -> dict[str, dict[str, Ratio]]:
        """Every policy's figure over callsheet's, by policy and figure, by pairs of runs of one seed."""
        ours = self.results.get(OURS)
        if ours is None:
            return {}
        compared: dict[str, dict[str, Ratio]] = {}
        for name, result in self.applying.items():
            if name == OURS:
                continue
            by_figure = {
                key: paired_ratio(result, ours, key)
                for key in ("act_mean_s", "act_p99_s", "act_p999_s", "wait_max_s", self.span_key)
            }
            compared[name] = {key: ratio for key, ratio in by_figure.items() if ratio is not None}
        return compared

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        source = self.settings.source
        report: dict[str, Any] = {
            "workload": source.workload,
            "mode": source.mode.value,
            "rho": significant(self.load.rho),
            "load": rounded(asdict(self.load)),
            "cores": self.cores,
            "gpus": source.gpus,
            "trajectories": self.load.live,
            "seeds": list(self.settings.seeds),
            "jobs": {job.name: {"weight": job.weight, "priority": job.priority.name.lower()} for job in self.jobs},
            "trace": str(source.trace) if source.trace is not None else None,
            "generation_scale": source.generation_scale,
            "policies": {name: self._policy(result) for name, result in self.results.items()},
            "bounds": rounded(self.bounds),
            "ratios_over_callsheet": {
                name: {key: rounded(asdict(ratio)) for key, ratio in by_figure.items()}
                for name, by_figure in self.ratios().items()
            },
            "wall_s": significant(self.wall_s),
        }
        if self.ablations:
            report["ablations"] = {name: self._policy(result) for name, result in self.ablations.items()}
        equal = self.equal_act
        report["equal_act"] = rounded({**asdict(equal), "saved": equal.saved}) if equal is not None else None
        return report

    def _policy(self, result: PolicyResult | None) -> dict[str, Any] | None:
        if result is None:
            return None
        per_seed = [{"seed": run.seed, **self._figures(run.figures), "jobs": _jobs(run.jobs)} for run in result.by_seed]
        return {**self._figures(result.mean()), "jobs": _jobs(result.jobs()), "per_seed": per_seed}

    def _figures(self, figures: Figures) -> dict[str, float | int | None]:
        return figures.as_json(self.span_key)


def _jobs(figures: Mapping[str, JobFigures]) -> dict[str, dict[str, float | int | None]]:
    return {name: each.as_json() for name, each in figures.items()}
