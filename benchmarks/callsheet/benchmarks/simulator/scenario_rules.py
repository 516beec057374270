"""What must hold of a scenario before it can be simulated."""

from __future__ import annotations

from callsheet.benchmarks.simulator.scenario import Mode, Rollout, Scenario, Turn, Work
from callsheet.scheduler.core.model import ActionKind

# Three years. Beyond that the deadlines strike that stand for "never" in the simulator's requests.
LONGEST_S = 1e8
# Attempts of an action that fail and are made again; the retries of requests are bounded too.
MOST_FAILS = 100


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
        self._kv_tokens = max((engine.kv_tokens for engine in cluster.engines), default=-1)

    def check(self, rollout: Rollout) -> None:
        if rollout.job not in self._jobs:
            raise ValueError(f"{rollout.name}.job: {rollout.job!r}; must be a job of the scenario")
        _check_time(f"{rollout.name}.arrives", rollout.arrives)
        for turn in rollout.turns:
            _check_time(f"{rollout.name}: seconds of a generation", turn.generation.seconds)
            self._check_generation(rollout, turn)
        for work in rollout.works():
            self._check_work(rollout, work)

    def _check_generation(self, rollout: Rollout, turn: Turn) -> None:
        tokens = turn.generation.prompt_tokens + turn.generation.output_tokens
        if self._kv_tokens >= 0 and not 0 < tokens <= self._kv_tokens:
            raise ValueError(
                f"{rollout.name}: a generation of {tokens} tokens; must be 1 to {self._kv_tokens}, what an engine holds"
            )

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
