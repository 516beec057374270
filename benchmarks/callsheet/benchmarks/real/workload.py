"""The benchmark's trajectories: the coding workload's, cut to what two cores can do in a minute."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.simulator.scenario import Cluster, CpuNodes, Rollout, Scenario, Turn, Work
from callsheet.benchmarks.simulator.workloads import scenario as draw_scenario
from callsheet.scheduler.core.words.model import ActionKind


@dataclass(frozen=True, slots=True)
class Costs:
    """What this machine takes for the smallest things, in seconds; measured one at a time before a run.

    Attributes:
        start_up_cpu_s: CPU of the smallest command; no command takes less.
        overhead_s: What the service adds to it, from submit to outcome.
        reset_cpu_s: CPU of the service and its client for a sandbox, from its making to its end.
    """

    start_up_cpu_s: float = 0.0
    overhead_s: float = 0.0
    reset_cpu_s: float = 0.0


def real_scenario(settings: RealSettings, cores: int, costs: Costs) -> Scenario:
    """Draws what is run for real.

    Args:
        settings: How much.
        cores: Of the one node.
        costs: Of the machine.
    """
    drawn = draw_scenario(
        "coding",
        trajectories=settings.trajectories,
        seed=settings.seed,
        cores=cores,
        generation_scale=settings.generation_scale,
        reward_mix="none",
    )
    return replace(
        drawn,
        workload="real",
        cluster=Cluster(cpu=(CpuNodes(1, cores),)),
        rollouts=tuple(_cut(rollout, settings, costs) for rollout in drawn.rollouts),
    )


def _cut(rollout: Rollout, settings: RealSettings, costs: Costs) -> Rollout:
    def cut(work: Work) -> Work:
        cpu_s = min(max(work.cpu_s, costs.start_up_cpu_s), settings.longest_s)
        return replace(work, cpu_s=cpu_s, peak_memory_mb=0, fails=0, timeout_s=float("inf"))

    turns = _changed(rollout.turns[: settings.turns], cut)
    reset = Work(ActionKind.ENV_RESET, "reset", cpu_s=costs.reset_cpu_s, in_sandbox=True)
    return replace(rollout, image="", memory_mb=0, reset=reset, turns=turns, rewards=())


def _changed(turns: tuple[Turn, ...], change: Callable[[Work], Work]) -> tuple[Turn, ...]:
    return tuple(Turn(turn.generation, tuple(map(change, turn.actions))) for turn in turns)


def _with_commands(scenario: Scenario, workload: str, change: Callable[[Work], Work]) -> Scenario:
    """The same trajectories with other commands; resets stay as they are."""
    rollouts = (replace(rollout, turns=_changed(rollout.turns, change)) for rollout in scenario.rollouts)
    return replace(scenario, workload=workload, rollouts=tuple(rollouts))


def with_service(scenario: Scenario, costs: Costs, service_cpu_s: float) -> Scenario:
    """What the simulator predicts: the service's work for a command is done on the cores that commands share."""

    def longer(work: Work) -> Work:
        cpu_s = work.cpu_s + service_cpu_s
        alone_s = work.alone_s() + max(costs.overhead_s, service_cpu_s)
        return replace(work, cpu_s=cpu_s, use=cpu_s / alone_s if cpu_s else 1.0)

    return _with_commands(scenario, scenario.workload, longer)
