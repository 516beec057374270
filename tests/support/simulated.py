"""Small scenarios for the simulator, and a policy that starts everything at once."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from callsheet.benchmarks.simulator.policy import EndFacts, LiveRollout, Task, World
from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    CpuNodes,
    Generation,
    Mode,
    Rollout,
    Scenario,
    ScenarioJob,
    Turn,
    Work,
)
from callsheet.scheduler.core.words.model import ActionKind

RESET = Work(ActionKind.ENV_RESET, "reset", cpu_s=0.5, in_sandbox=True)


class StartAtOnce:
    """Lets every trajectory begin, on the node with the fewest sandboxes, and starts every action when it is ready.

    Written to be read, not to schedule well. It keeps a list of what it was told, in order.
    """

    name = "start_at_once"

    def __init__(self, world: World, width: int = 1) -> None:
        self.world = world
        self.width = width
        self.told: list[tuple[str, str, float]] = []
        self.facts: list[tuple[Task, EndFacts]] = []
        self._nodes = dict.fromkeys(world.scenario.cluster.cpu_nodes(), 0)

    def arrived(self, live: LiveRollout) -> None:
        """Lets it begin."""
        self._tell("arrived", live)
        self.world.begin(live)

    def ready(self, task: Task) -> None:
        """Starts it."""
        self._tell("ready", task.live)
        self.world.start(task, node=self._node(task), width=self.width if task.work.max_width > 1 else 1)

    def ended(self, task: Task, facts: EndFacts) -> None:
        """Keeps the facts."""
        self._tell("ended", task.live)
        self.facts.append((task, facts))

    def finished(self, live: LiveRollout) -> None:
        """Does nothing."""
        self._tell("finished", live)

    def woken(self) -> None:
        """Does nothing."""

    def _tell(self, what: str, live: LiveRollout) -> None:
        self.told.append((what, live.rollout.name, self.world.now))

    def _node(self, task: Task) -> str:
        if task.work.quota:
            return ""
        if task.work.service:
            return self._gpu_node(task.work.service)
        if task.live.node:
            return task.live.node
        node = min(self._nodes, key=lambda name: self._nodes[name])
        self._nodes[node] += 1
        return node

    def _gpu_node(self, model: str) -> str:
        times = {name: self.world.set_up_s(name, model) for name in self.world.scenario.cluster.gpu_nodes()}
        return min((seconds, name) for name, seconds in times.items() if seconds is not None)[1]


def step(cpu_s: float, *, use: float = 1.0, timeout_s: float = float("inf")) -> Work:
    """A serial command in a sandbox."""
    return Work(ActionKind.ENV_STEP, "step", cpu_s=cpu_s, use=use, in_sandbox=True, timeout_s=timeout_s)


def trajectory(
    name: str, steps: Sequence[Work], *, generation_s: float = 1.0, arrives: float = 0.0, rewards: Sequence[Work] = ()
) -> Rollout:
    """A trajectory with a sandbox and one command a turn."""
    return Rollout(
        name=name,
        job="job",
        group=name,
        task=name,
        image="",
        memory_mb=100,
        arrives=arrives,
        reset=RESET,
        turns=tuple(Turn(Generation(generation_s), (work,)) for work in steps),
        rewards=tuple(rewards),
    )


def one_node(rollouts: Sequence[Rollout], cores: int, *, nodes: int = 1) -> Scenario:
    """A one-shot step on alike CPU nodes."""
    return Scenario(
        workload="test",
        mode=Mode.ONESHOT,
        seed=0,
        cluster=Cluster(cpu=(CpuNodes(nodes, cores),)),
        jobs=(ScenarioJob("job"),),
        rollouts=tuple(rollouts),
        live=len(rollouts),
    )


def random_scenario(seed: int, *, trajectories: int = 40, cores: int = 4, turns: int = 6) -> Scenario:
    """A contended step of trajectories with commands of all widths and uses."""
    draw = random.Random(seed)
    rollouts = []
    for index in range(trajectories):
        works = [_random_step(draw) for _ in range(draw.randint(1, turns))]
        reward = Work(
            ActionKind.REWARD, "suite", cpu_s=draw.expovariate(0.2), parallel_fraction=0.9, max_width=4, use=0.9
        )
        rollouts.append(trajectory(f"t{index}", works, generation_s=draw.expovariate(0.5), rewards=(reward,)))
    return one_node(rollouts, cores, nodes=2)


def sustained(scenario: Scenario, *, live: int, horizon_s: float) -> Scenario:
    """The same trajectories in a sustained run."""
    return replace(scenario, mode=Mode.SUSTAINED, live=live, horizon_s=horizon_s)


def _random_step(draw: random.Random) -> Work:
    width = draw.choice((1, 1, 1, 4))
    return Work(
        ActionKind.ENV_STEP,
        draw.choice(("git", "test")),
        cpu_s=draw.expovariate(1.0),
        use=draw.uniform(0.2, 1.0),
        parallel_fraction=0.8 if width > 1 else 0.0,
        max_width=width,
        in_sandbox=True,
    )
