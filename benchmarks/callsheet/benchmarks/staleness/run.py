"""Runs each policy in virtual time, on trajectories of the same lengths."""

from __future__ import annotations

from dataclasses import asdict

from callsheet.benchmarks.measuring.clock import Progress
from callsheet.benchmarks.measuring.machine import describe_machine
from callsheet.benchmarks.staleness.report import LengthQuantile, PolicyRun, StalenessReport
from callsheet.benchmarks.staleness.settings import StalenessBenchSettings
from callsheet.benchmarks.staleness.world import MINUTE, StalenessWorld
from callsheet.scheduler.core.staleness import StalenessPolicy


def run_staleness_bench(settings: StalenessBenchSettings, progress: Progress = lambda _: None) -> StalenessReport:
    """Measures all policies.

    Args:
        settings: The workload.
        progress: Told, as a sentence, how it goes.
    """
    within = settings.within
    policies = {
        "none": StalenessPolicy(),
        "admit": StalenessPolicy(admit_within=within),
        "select": StalenessPolicy(select_within=within),
        "evict": StalenessPolicy(evict_beyond=within),
        "evict and select": StalenessPolicy(select_within=within, evict_beyond=within),
    }
    runs = []
    for name, policy in policies.items():
        progress(f"{name}: {settings.hours:g} virtual hours")
        runs.append(_run(name, policy, settings))
    return StalenessReport(tuple(runs), asdict(settings), describe_machine())


def _run(name: str, policy: StalenessPolicy, settings: StalenessBenchSettings) -> PolicyRun:
    world = StalenessWorld(settings, policy)
    found = world.run()
    buffer = found.job.buffer
    quantiles = tuple(
        LengthQuantile(each.up_to_s / MINUTE, each.trajectories, each.trained) for each in buffer.lengths.shares()
    )
    bounds = [each for each in (policy.admit_within, policy.select_within) if each is not None]
    return PolicyRun(
        name,
        min(bounds, default=None),
        policy.admit_within is not None,
        found.trainer.version,
        {fate: buffer.lengths.total(fate) for fate in buffer.lengths.counts},
        dict(buffer.staleness),
        quantiles,
        found.trainer.waited_s / (settings.hours * 60.0 * MINUTE),
    )
