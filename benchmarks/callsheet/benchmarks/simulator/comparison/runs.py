"""Runs simulations in worker processes, in any order, and gives results back in the order asked for."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.simulator.comparison.figures import NO_ACTIONS, Figures, JobFigures, SeedResult
from callsheet.benchmarks.simulator.comparison.settings import ScenarioSource
from callsheet.benchmarks.simulator.measurements import Floats, Measurements, act_figures
from callsheet.benchmarks.simulator.policies import POLICIES
from callsheet.benchmarks.simulator.policies.callsheet import callsheet_with
from callsheet.benchmarks.simulator.policy import PolicyFactory
from callsheet.benchmarks.simulator.scenario import Mode
from callsheet.benchmarks.simulator.shell.settings import CallsheetSettings
from callsheet.benchmarks.simulator.simulation import simulate
from callsheet.benchmarks.simulator.worker_pool import map_in_processes


@dataclass(frozen=True, slots=True)
class Run:
    """One simulation.

    Attributes:
        variant: Settings of callsheet other than its defaults; None for any policy as it is.
        title: What progress calls it; empty for the policy's name.
    """

    policy: str
    source: ScenarioSource
    seed: int
    variant: CallsheetSettings | None = None
    title: str = ""


def run_all(runs: Sequence[Run], processes: int, progress: Progress) -> list[SeedResult | None]:
    """Runs them, `processes` at once; None for a policy that does not apply to its scenario.

    Raises:
        ValueError: A workload, trace or policy is unknown or not valid.
    """
    return map_in_processes(run_one, runs, processes, partial(_report, progress))


def _report(progress: Progress, run: Run, result: SeedResult | None) -> None:
    title = run.title or run.policy
    if result is None:
        progress(f"{title}: does not apply to {run.source.workload}")
    else:
        mean = result.figures.act_mean_s
        progress(f"{title}, seed {run.seed}: mean ACT {mean:.3f} s, simulated in {result.cpu_s:.1f} s of CPU")


def run_one(run: Run) -> SeedResult | None:
    """Draws the scenario and runs the policy on it; see `run_all`."""
    scenario = run.source.scenario(run.seed)
    factory = _factory(run)
    if not factory.applies(scenario):
        return None
    began = time.process_time()
    measured = simulate(scenario, factory)
    return SeedResult(
        seed=run.seed,
        figures=figures_of(measured),
        jobs={job: _job_figures(measured.act_of_job_s(job)) for job in measured.jobs},
        act_bounds=act_figures(measured.actions.best_s),
        cpu_s=time.process_time() - began,
    )


def _factory(run: Run) -> PolicyFactory:
    factory = POLICIES.get(run.policy)
    if factory is None:
        raise ValueError(f"policy: must be one of {', '.join(POLICIES)}, got {run.policy!r}")
    return factory if run.variant is None else callsheet_with(run.variant)


def figures_of(measured: Measurements) -> Figures:
    """The figures of a run."""
    sustained = measured.mode is Mode.SUSTAINED
    actions, acts = len(measured.actions), act_figures(measured.actions.act_s)
    per_action = len(measured.rollouts.arrived_at) / max(actions, 1)
    return Figures(
        **asdict(acts),
        wait_max_s=measured.wait_max_s,
        start_wait_mean_s=measured.start_wait_mean_s,
        act_with_start_mean_s=acts.act_mean_s + measured.start_wait_mean_s * per_action,
        step_s=None if sustained else measured.step_s,
        trajectories_per_hour=measured.trajectories_per_hour if sustained else None,
        held=measured.held if measured.cores else None,
        used=measured.used if measured.cores else None,
        gpu_held=measured.gpu_held if measured.gpus else None,
        gpu_used=measured.gpu_used if measured.gpus else None,
        actions=actions,
        cancelled=measured.cancelled_actions,
        environment_busy=measured.environment_busy,
    )


def _job_figures(act_s: Floats) -> JobFigures:
    if not len(act_s):
        return NO_ACTIONS
    p50, p99 = np.percentile(act_s, (50, 99)).tolist()
    return JobFigures(len(act_s), float(act_s.mean()), p50, p99)
