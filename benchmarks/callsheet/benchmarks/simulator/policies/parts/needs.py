"""What trajectories and scenarios need of the machines, read off before a run."""

from __future__ import annotations

from callsheet.benchmarks.simulator.scenario import Rollout, Scenario, Work


def runs_on_cpu(work: Work) -> bool:
    """Whether it is a command on a CPU node, rather than a call of a service or an API."""
    return not work.service and not work.quota


def needs_cpu(rollout: Rollout) -> bool:
    """Whether anything of the trajectory runs on a CPU node."""
    return any(runs_on_cpu(work) for work in rollout.works())


def scenario_needs_cpu(scenario: Scenario) -> bool:
    """Whether any trajectory runs commands on the scenario's CPU nodes."""
    return bool(scenario.cluster.cpu) and any(needs_cpu(rollout) for rollout in scenario.rollouts)


def largest_peak_mb(scenario: Scenario) -> int:
    """The most memory that any command adds while it runs."""
    return max((work.peak_memory_mb for rollout in scenario.rollouts for work in rollout.works()), default=0)


def pod_memory_mb(rollout: Rollout) -> int:
    """What a pod of its own needs: what the sandbox holds, and the most that its commands add at one time."""
    together = [turn.actions for turn in rollout.turns]
    together.append(rollout.rewards)
    if rollout.reset is not None:
        together.append((rollout.reset,))
    peaks = (sum(work.peak_memory_mb for work in actions) for actions in together)
    return rollout.memory_mb + max(peaks, default=0)
