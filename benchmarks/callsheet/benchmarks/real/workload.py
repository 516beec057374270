"""The benchmark's trajectories: the coding workload's, cut to what two cores can do in a minute."""

from __future__ import annotations

from dataclasses import replace

from callsheet.benchmarks.real.settings import RealSettings
from callsheet.benchmarks.simulator.scenario import Cluster, CpuNodes, Rollout, Scenario, Turn, Work
from callsheet.benchmarks.simulator.workloads import scenario as draw_scenario
from callsheet.scheduler.core.model import ActionKind

# What making a sandbox takes of the CPU; measured again by every run, as part of its outcome.
_RESET = Work(ActionKind.ENV_RESET, "reset", cpu_s=0.03, in_sandbox=True)
# A sleeping command uses next to nothing of its core.
_SLEEPING_USE = 1e-3


def real_scenario(settings: RealSettings, cores: int, start_up_cpu_s: float) -> Scenario:
    """Draws what is run for real, and what the simulator predicts.

    Args:
        settings: How much.
        cores: Of the one node.
        start_up_cpu_s: CPU seconds that the smallest command takes; no command takes less.
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
        jobs=tuple(replace(job, quorum=0, group_size=1) for job in drawn.jobs),
        rollouts=tuple(_cut(rollout, settings, start_up_cpu_s) for rollout in drawn.rollouts),
    )


def _cut(rollout: Rollout, settings: RealSettings, start_up_cpu_s: float) -> Rollout:
    def cut(work: Work) -> Work:
        cpu_s = min(max(work.cpu_s, start_up_cpu_s), settings.longest_s)
        return replace(work, cpu_s=cpu_s, peak_memory_mb=0, fails=0, timeout_s=float("inf"))

    turns = tuple(Turn(turn.generation, tuple(map(cut, turn.actions))) for turn in rollout.turns[: settings.turns])
    return replace(rollout, image="", memory_mb=0, reset=_RESET, turns=turns, rewards=())


def asleep(scenario: Scenario) -> Scenario:
    """The same trajectories with commands that sleep for as long as the real ones take alone."""

    def sleeping(work: Work) -> Work:
        return replace(work, cpu_s=work.alone_s() * _SLEEPING_USE, use=_SLEEPING_USE)

    rollouts = tuple(
        replace(
            rollout,
            turns=tuple(Turn(turn.generation, tuple(map(sleeping, turn.actions))) for turn in rollout.turns),
        )
        for rollout in scenario.rollouts
    )
    return replace(scenario, workload="real, asleep", rollouts=rollouts)


def without_resets(scenario: Scenario) -> Scenario:
    """The same trajectories where there are no sandboxes."""

    def anywhere(turn: Turn) -> Turn:
        return Turn(turn.generation, tuple(replace(work, in_sandbox=False) for work in turn.actions))

    rollouts = tuple(
        replace(rollout, reset=None, turns=tuple(map(anywhere, rollout.turns))) for rollout in scenario.rollouts
    )
    return replace(scenario, rollouts=rollouts)
