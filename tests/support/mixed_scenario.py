"""A small scenario with everything a policy must cope with."""

from __future__ import annotations

import random
from dataclasses import replace

from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    EngineType,
    Generation,
    GpuNodes,
    Mode,
    Model,
    Quota,
    Rollout,
    Scenario,
    ScenarioJob,
    Turn,
    Work,
)
from callsheet.scheduler.core.model import ActionKind

GROUP_SIZE = 4
ENGINES = (
    EngineType("fast", 1, 1, 20_000.0, 0.01, 1e-4, 8, 50_000),
    EngineType("wide", 2, 1, 5_000.0, 0.02, 1e-4, 32, 200_000),
)
CLUSTER = Cluster(
    cpu=(CpuNodes(2, 8, memory_mb=6_000), CpuNodes(1, 4, memory_mb=4_000)),
    gpu=(GpuNodes(1, 4), GpuNodes(1, 2)),
    models=(Model("judge", 1, 0.5, 3.0, slots=2), Model("teacher", 2, 1.0, 5.0)),
    quotas=(Quota("web", concurrency=6, per_second=3.0, burst=4.0, tokens_per_minute=60_000.0),),
    pull_s=0.5,
    pulls_at_once=2,
)


def mixed_scenario(seed: int, *, trajectories: int = 32, quorum: int = 0, engines: bool = False) -> Scenario:
    """Sandboxes with tight memory, wide commands, parallel actions, GPU models, an API, failures and timeouts."""
    draw = random.Random(seed)
    return Scenario(
        workload="mixed",
        mode=Mode.ONESHOT,
        seed=seed,
        cluster=replace(CLUSTER, engines=ENGINES if engines else ()),
        jobs=(ScenarioJob("job", group_size=GROUP_SIZE, quorum=quorum),),
        rollouts=tuple(_rollout(draw, index) for index in range(trajectories)),
        live=trajectories,
    )


def _rollout(draw: random.Random, index: int) -> Rollout:
    group = f"group-{index // GROUP_SIZE}"
    has_sandbox = index % 5 != 4
    return Rollout(
        name=f"t{index}",
        job="job",
        group=group,
        task=group,
        image=group if has_sandbox else "",
        memory_mb=400 if has_sandbox else 0,
        arrives=draw.uniform(0.0, 5.0),
        reset=_command(draw, ActionKind.ENV_RESET, "reset") if has_sandbox else None,
        turns=tuple(_turn(draw, has_sandbox) for _ in range(draw.randint(1, 6))),
        rewards=_rewards(draw),
    )


def _turn(draw: random.Random, has_sandbox: bool) -> Turn:
    generation = Generation(draw.expovariate(0.5), draw.randint(100, 5_000), draw.randint(10, 200))
    if has_sandbox and draw.random() < 0.7:
        label = draw.choice(("git", "test"))
        return Turn(generation, tuple(_command(draw, ActionKind.ENV_STEP, label) for _ in range(draw.randint(1, 2))))
    return Turn(generation, tuple(_search(draw) for _ in range(draw.randint(1, 3))))


def _command(draw: random.Random, kind: ActionKind, label: str) -> Work:
    width = draw.choice((1, 1, 1, 4)) if label == "test" else 1
    return Work(
        kind,
        label,
        cpu_s=draw.expovariate(0.5),
        use=draw.uniform(0.2, 1.0),
        parallel_fraction=0.8 if width > 1 else 0.0,
        max_width=width,
        in_sandbox=True,
        peak_memory_mb=draw.choice((0, 100, 1_500)),
        service_s=draw.choice((0.0, 0.0, 0.3)),
        timeout_s=8.0,
        fails=int(draw.random() < 0.1),
    )


def _search(draw: random.Random) -> Work:
    return Work(
        ActionKind.TOOL_CALL, "search", quota="web", service_s=draw.expovariate(1.0), tokens=draw.randint(0, 3_000)
    )


def _rewards(draw: random.Random) -> tuple[Work, ...]:
    suite = Work(
        ActionKind.REWARD,
        "suite",
        cpu_s=draw.expovariate(0.1),
        use=0.9,
        parallel_fraction=0.9,
        max_width=16,
        peak_memory_mb=500,
        fails=int(draw.random() < 0.1),
    )
    name = draw.choice(("judge", "judge", "teacher"))
    call = Work(ActionKind.REWARD, name, service=name, service_s=draw.expovariate(1.0), fails=int(draw.random() < 0.1))
    return (suite, call)
