"""Input of a simulation: trajectories drawn ahead of time, and the machines they run on.

Everything random is drawn here, before a run, from the seed: all policies meet the very same trajectories. Times are in
seconds, memory in MB, widths and cores in cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from callsheet.scheduler.core.words.model import ActionKind, PriorityClass

# Three years. Beyond that the deadlines strike that stand for "never" in the simulator's requests.
LONGEST_S = 1e8
# Attempts of an action that fail and are made again; the retries of requests are bounded too.
MOST_FAILS = 100


class Mode(Enum):
    """Modes of a simulation: finished trajectories are replaced, or not."""

    ONESHOT = "oneshot"
    SUSTAINED = "sustained"


@dataclass(frozen=True, slots=True)
class Work:
    """One external action: what it does, whoever schedules it.

    A command runs alone on one core for `cpu_s / use` seconds and consumes `cpu_s` of CPU; the rest of that time it
    waits for disks and sockets. On `w` cores it is `speed_up(w)` times as fast and uses `use * speed_up(w)` cores. A
    service call (`service` is set) takes `service_s` on the GPUs of a resident model, a call under a `quota` takes
    `service_s` at an outside API.

    Attributes:
        kind: Any but generate.
        label: Class of the command ("test", "git", ...): what a predictor may know ahead.
        cpu_s: CPU seconds on one core; 0 for calls that use none here.
        use: Cores used when running alone on one core, in (0, 1].
        parallel_fraction: Amdahl's fraction in [0, 1].
        max_width: Most cores it can use; 1 for a serial command.
        adaptive: Whether it uses cores given to it after its start (shrinking works for all).
        in_sandbox: Whether it needs its trajectory's sandbox, or makes it (env_reset).
        peak_memory_mb: Peak while it runs, beyond what the sandbox holds.
        service: Model of a GPU reward, by name; empty for others.
        quota: Outside API, by name; empty for others.
        service_s: Seconds on a service or an API.
        tokens: Tokens it takes from the quota's tokens per minute.
        timeout_s: Execution clock at which it ends as a timeout; infinite for none.
        fails: As often as this says, it does all its work and then ends in a failure that its kind retries (INFRA).
    """

    kind: ActionKind
    label: str
    cpu_s: float = 0.0
    use: float = 1.0
    parallel_fraction: float = 0.0
    max_width: int = 1
    adaptive: bool = False
    in_sandbox: bool = False
    peak_memory_mb: int = 0
    service: str = ""
    quota: str = ""
    service_s: float = 0.0
    tokens: int = 0
    timeout_s: float = float("inf")
    fails: int = 0

    @property
    def runs_on_cpu(self) -> bool:
        """True for a command on a CPU node, false for a call of a service or an API."""
        return not self.service and not self.quota

    def speed_up(self, width: int) -> float:
        """Amdahl's speed-up on that many cores."""
        cores = max(1, min(width, self.max_width))
        return 1.0 / ((1.0 - self.parallel_fraction) + self.parallel_fraction / cores)

    def alone_s(self, width: int = 1) -> float:
        """Execution time with that many cores to itself, or on its service."""
        return self.service_s + (self.cpu_s / self.use / self.speed_up(width) if self.cpu_s else 0.0)


@dataclass(frozen=True, slots=True)
class Generation:
    """One turn of the policy model.

    Attributes:
        seconds: Time it takes, whatever else runs.
    """

    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Turn:
    """Generation, then its actions, all at once; the next turn begins when all have ended."""

    generation: Generation
    actions: tuple[Work, ...]


@dataclass(frozen=True, slots=True)
class Rollout:
    """A whole trajectory, drawn ahead.

    Attributes:
        name: Unique in the scenario.
        job: Name of its job.
        group: Siblings of one prompt share it.
        task: What predictors know it by; siblings share it.
        image: Root filesystem of its sandbox; empty for none.
        memory_mb: Held by its sandbox between actions.
        arrives: When it wants to start.
        reset: Makes its sandbox; None where it needs none.
        turns: In order.
        rewards: Submitted together after the last turn.
    """

    name: str
    job: str
    group: str
    task: str
    image: str = ""
    memory_mb: int = 0
    arrives: float = 0.0
    reset: Work | None = None
    turns: tuple[Turn, ...] = ()
    rewards: tuple[Work, ...] = ()

    def works(self) -> Iterator[Work]:
        """Its external actions, in order."""
        if self.reset is not None:
            yield self.reset
        for turn in self.turns:
            yield from turn.actions
        yield from self.rewards


@dataclass(frozen=True, slots=True)
class ScenarioJob:
    """A job of the scenario.

    Attributes:
        priority: Its class: one that is served first goes before all others where not all can be served.
    """

    name: str
    weight: float = 1.0
    priority: PriorityClass = PriorityClass.TRAIN


@dataclass(frozen=True, slots=True)
class CpuNodes:
    """Alike CPU nodes. A sandbox on them holds memory; images are pulled once per node."""

    count: int
    cores: int
    memory_mb: int = 2_400_000
    numa_nodes: int = 1


@dataclass(frozen=True, slots=True)
class Model:
    """A model behind a service: how many GPUs an instance takes, and how long it takes to bring in.

    Attributes:
        gpus: A buddy chunk: 1, 2, 4 or 8.
        restore_s: Host memory to GPU.
        load_s: Disk to host memory, before the restore, once per node.
        slots: Calls an instance serves at once.
    """

    name: str
    gpus: int
    restore_s: float
    load_s: float
    slots: int = 1


@dataclass(frozen=True, slots=True)
class GpuNodes:
    """Alike nodes for GPU rewards."""

    count: int
    gpus: int


@dataclass(frozen=True, slots=True)
class Quota:
    """An outside API: calls at once, calls per second with a burst, and what it answers beyond (429, retry after).

    Attributes:
        burst: Calls that a pause saves up, at most.
        retry_after_s: What a refusal asks for.
        refusal_s: What a refusal itself takes.
        tokens_per_minute: Of `Work.tokens`; up to a minute's worth is saved up.
    """

    name: str
    concurrency: int
    per_second: float
    burst: float
    retry_after_s: float = 1.0
    refusal_s: float = 0.05
    tokens_per_minute: float = float("inf")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The machines of a scenario.

    Attributes:
        pull_s: An image comes to a node that has not had it yet.
        pulls_at_once: Images that the registry serves at once, to all nodes together; others wait in line.
    """

    cpu: tuple[CpuNodes, ...] = ()
    gpu: tuple[GpuNodes, ...] = ()
    models: tuple[Model, ...] = ()
    quotas: tuple[Quota, ...] = ()
    pull_s: float = 0.0
    pulls_at_once: int = 8

    def cpu_nodes(self) -> dict[str, CpuNodes]:
        """Every CPU node by name: cpu-0, cpu-1, ..."""
        alike = [nodes for nodes in self.cpu for _ in range(nodes.count)]
        return {f"cpu-{index}": nodes for index, nodes in enumerate(alike)}

    def gpu_nodes(self) -> dict[str, GpuNodes]:
        """Every GPU node by name: gpu-0, gpu-1, ..."""
        alike = [nodes for nodes in self.gpu for _ in range(nodes.count)]
        return {f"gpu-{index}": nodes for index, nodes in enumerate(alike)}


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything a simulation needs; the same for every policy.

    In `ONESHOT` mode every trajectory arrives at its own time, and the run ends with the last of them. In `SUSTAINED`
    mode the first `live` do; each that ends is replaced by the next (and after the last, by the first again) until
    `horizon_s`.
    """

    workload: str
    mode: Mode
    seed: int
    cluster: Cluster
    jobs: tuple[ScenarioJob, ...]
    rollouts: tuple[Rollout, ...]
    live: int
    horizon_s: float = float("inf")

    @property
    def warm_up_s(self) -> float:
        """Seconds of a sustained run that do not count: trajectories that started together drift apart first."""
        return 0.25 * self.horizon_s if self.mode is Mode.SUSTAINED else 0.0


def check_scenario(scenario: Scenario) -> None:
    """Refuses a scenario that no policy could carry out.

    Raises:
        ValueError: Names the field, its value and the rule.
    """
    if scenario.mode is Mode.SUSTAINED and not 0 < scenario.horizon_s < float("inf"):
        raise ValueError(f"horizon_s: {scenario.horizon_s}; a sustained run needs a finite one above 0")
    if scenario.mode is Mode.SUSTAINED and not 0 < scenario.live <= len(scenario.rollouts):
        raise ValueError(f"live: {scenario.live}; must be 1 to {len(scenario.rollouts)}, the number of trajectories")
    names = [rollout.name for rollout in scenario.rollouts]
    if len(set(names)) < len(names):
        raise ValueError(f"rollouts: {len(names) - len(set(names))} names occur more than once; each must be unique")
    rules = _Rules(scenario)
    for rollout in scenario.rollouts:
        rules.check(rollout)


class _Rules:
    def __init__(self, scenario: Scenario) -> None:
        cluster = scenario.cluster
        self._jobs = {job.name for job in scenario.jobs}
        self._models = {model.name: model for model in cluster.models}
        self._quotas = {quota.name for quota in cluster.quotas}
        self._cpu_memory_mb = max((nodes.memory_mb for nodes in cluster.cpu), default=-1)
        self._gpus = max((nodes.gpus for nodes in cluster.gpu), default=0)

    def check(self, rollout: Rollout) -> None:
        if rollout.job not in self._jobs:
            raise ValueError(f"{rollout.name}.job: {rollout.job!r}; must be a job of the scenario")
        _check_time(f"{rollout.name}.arrives", rollout.arrives)
        for turn in rollout.turns:
            _check_time(f"{rollout.name}: seconds of a generation", turn.generation.seconds)
        for work in rollout.works():
            self._check_work(rollout, work)

    def _check_work(self, rollout: Rollout, work: Work) -> None:
        where = f"{rollout.name}.{work.kind.name.lower()} {work.label}"
        if work.service:
            self._check_service(where, work)
        elif work.quota:
            if work.quota not in self._quotas:
                raise ValueError(f"{where}.quota: {work.quota!r}; must be a quota of the cluster")
        else:
            self._check_command(where, rollout, work)
        _check_time(f"{where}: seconds alone", work.alone_s())
        if work.fails > MOST_FAILS:
            raise ValueError(f"{where}.fails: {work.fails}; must be at most {MOST_FAILS}")

    def _check_service(self, where: str, work: Work) -> None:
        model = self._models.get(work.service)
        if model is None:
            raise ValueError(f"{where}.service: {work.service!r}; must be a model of the cluster")
        if model.gpus > self._gpus:
            raise ValueError(
                f"{where}.service: {model.name} takes {model.gpus} GPUs; the largest node has {self._gpus}"
            )

    def _check_command(self, where: str, rollout: Rollout, work: Work) -> None:
        needed = work.peak_memory_mb + (rollout.memory_mb if work.in_sandbox else 0)
        if needed > self._cpu_memory_mb:
            raise ValueError(
                f"{where}: {needed} MB of memory; the largest CPU node has {max(0, self._cpu_memory_mb)} MB"
            )
        if work.in_sandbox and rollout.reset is None:
            raise ValueError(f"{where}.in_sandbox: True; its trajectory must have a reset, which makes the sandbox")
        if (work.kind is ActionKind.ENV_RESET) != (work is rollout.reset):
            raise ValueError(f"{where}.kind: a trajectory's reset, and nothing else, must be an env_reset")
        if work.cpu_s > 0 and not 0 < work.use <= 1:
            raise ValueError(f"{where}.use: {work.use}; must be in (0, 1]")


def _check_time(where: str, seconds: float) -> None:
    if not 0.0 <= seconds <= LONGEST_S:
        raise ValueError(f"{where}: {seconds}; must be between 0 and {LONGEST_S:.0f} s")
