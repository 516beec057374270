"""What a run showed, and the figures that are drawn from it."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from callsheet.benchmarks.simulator.events import EventQueue, Level
from callsheet.benchmarks.simulator.policy import Task
from callsheet.benchmarks.simulator.scenario import Scenario
from callsheet.scheduler.core.words.model import ActionKind


class ActionColumns:
    """An entry for every action that ended; see `measurements.Actions`."""

    def __init__(self) -> None:
        self.rollout = array("q")
        self.kind = array("b")
        self.ready_at = array("d")
        self.ended_at = array("d")
        self.queue_s = array("d")
        self.waited_s = array("d")
        self.execution_s = array("d")
        self.overhead_s = array("d")
        self.alone_s = array("d")


class RolloutColumns:
    """An entry for every trajectory that arrived, in that order; see `measurements.Rollouts`."""

    def __init__(self) -> None:
        self.job = array("h")
        self.arrived_at = array("d")
        self.began_at = array("d")
        self.ended_at = array("d")


class Recorder:
    """What a run leaves behind; `Measurements` reads it. Levels are integrated after the warm-up.

    Attributes:
        cores_held: Cores booked for running commands; at most what a node has.
        cores_used: Cores at work.
        gpus_held: GPUs of instances that serve a call or come for one.
        gpus_used: GPUs of instances that serve a call.
    """

    def __init__(self, events: EventQueue, warm_up_s: float) -> None:
        self._events = events
        self.cores_held = Level(events, warm_up_s)
        self.cores_used = Level(events, warm_up_s)
        self.gpus_held = Level(events, warm_up_s)
        self.gpus_used = Level(events, warm_up_s)
        self.jobs: dict[str, int] = {}
        self.counts = dict.fromkeys(("failures", "refusals", "timeouts"), 0)
        self.actions = ActionColumns()
        self.rollouts = RolloutColumns()

    def arrived(self, job: str) -> int:
        """Notes a trajectory of a job; returns its index."""
        rollouts = self.rollouts
        rollouts.job.append(self.jobs.setdefault(job, len(self.jobs)))
        rollouts.arrived_at.append(self._events.now)
        rollouts.began_at.append(-1.0)
        rollouts.ended_at.append(-1.0)
        return len(rollouts.arrived_at) - 1

    def began(self, index: int) -> None:
        """Notes that a trajectory was let in."""
        self.rollouts.began_at[index] = self._events.now

    def ended(self, index: int) -> None:
        """Notes the end of a trajectory."""
        self.rollouts.ended_at[index] = self._events.now

    def action_ended(self, rollout: int, task: Task) -> None:
        """Notes an action that ended, after its last attempt."""
        work, actions = task.work, self.actions
        actions.rollout.append(rollout)
        actions.kind.append(work.kind)
        actions.ready_at.append(task.ready_at)
        actions.ended_at.append(task.ended_at)
        actions.queue_s.append(task.queue_s)
        actions.waited_s.append(task.waited_s)
        actions.execution_s.append(task.execution_s)
        actions.overhead_s.append(task.overhead_s)
        actions.alone_s.append(min(work.alone_s(task.width), work.timeout_s))


Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ActFigures:
    """Figures of action completion times, in seconds; 0 without any action."""

    act_mean_s: float = 0.0
    act_p50_s: float = 0.0
    act_p99_s: float = 0.0
    act_p999_s: float = 0.0


def act_figures(act_s: Floats) -> ActFigures:
    """The figures of these times."""
    if not act_s.size:
        return ActFigures()
    return ActFigures(float(act_s.mean()), *np.percentile(act_s, (50.0, 99.0, 99.9)).tolist())


@dataclass(frozen=True, slots=True)
class Actions:
    """External actions that ended, a row each, in the order of their ends. Times in seconds.

    Attributes:
        rollout: Index of the trajectory in `Rollouts`.
        kind: The number of the `ActionKind`.
        queue_s: Ready without a start, over all attempts.
        waited_s: Waiting for cores, images and models after starts, over all attempts.
        execution_s: Between starts and ends, less that and overhead, over all attempts.
        overhead_s: What the policy's machinery added.
        alone_s: What one attempt takes with its cores to itself.
    """

    rollout: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int8]
    ready_at: Floats
    ended_at: Floats
    queue_s: Floats
    waited_s: Floats
    execution_s: Floats
    overhead_s: Floats
    alone_s: Floats

    def __len__(self) -> int:
        return len(self.ready_at)

    @property
    def act_s(self) -> Floats:
        """Action completion times: from ready to the end."""
        return self.ended_at - self.ready_at

    @property
    def wait_s(self) -> Floats:
        """What of the ACT is not the work itself: queue, overhead, failed attempts, and slowness from sharing.

        Whole nanoseconds: differences of virtual times are no finer, and what is left of them is rounding.
        """
        return np.round(self.act_s - self.alone_s, 9) + 0.0

    def where(self, chosen: npt.NDArray[np.bool_]) -> Actions:
        """Only the rows that are chosen."""
        return Actions(*(getattr(self, name)[chosen] for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Rollouts:
    """Trajectories in the order of their arrivals, a row each. Times in seconds; -1: the run ended before.

    Attributes:
        job: Index in `Measurements.jobs`.
    """

    job: npt.NDArray[np.int16]
    arrived_at: Floats
    began_at: Floats
    ended_at: Floats

    @property
    def finished(self) -> npt.NDArray[np.bool_]:
        """Which ones have ended."""
        return self.ended_at >= 0


class Measurements:
    """A run's records and the figures drawn from them.

    Sustained runs are measured after their warm-up, a quarter of the run: actions by when they became ready,
    trajectories by when they ended. An action that has not ended counts at its age, or a policy would look the better
    the longer it leaves long commands behind.

    Attributes:
        ended_at: Virtual second at which the run ended.
        warm_up_s: What of the run counts for nothing, from its start.
        actions: That ended; a sustained run's warm-up is left out.
        rollouts: All that arrived.
        jobs: Names of those whose trajectories arrived, by index.
        unfinished_s: Age at the end of the run of each action that had not ended.
        act_s: ACT of every action: of `actions` in their order, then the ages of those that had not ended.
        counts: failures (retried), refusals (429), timeouts.
        cores_held_s: Core-seconds after the warm-up booked for commands.
        cores_used_s: Core-seconds of work.
        gpus_held_s: GPU-seconds of instances that serve a call or come for one.
        gpus_used_s: GPU-seconds of instances that serve a call.
    """

    def __init__(self, scenario: Scenario, ended_at: float, recorder: Recorder, unfinished: Sequence[Task]) -> None:
        self.mode = scenario.mode
        self.ended_at = ended_at
        self.warm_up_s = scenario.warm_up_s
        self.cores = sum(nodes.cores * nodes.count for nodes in scenario.cluster.cpu)
        self.gpus = sum(nodes.gpus * nodes.count for nodes in scenario.cluster.gpu)
        self.jobs = tuple(recorder.jobs)
        self.counts = dict(recorder.counts)
        self.rollouts = Rollouts(**_arrays(recorder.rollouts))
        all_actions = Actions(**_arrays(recorder.actions))
        self.actions = all_actions.where(all_actions.ready_at >= self.warm_up_s)
        self.unfinished_s = np.array([ended_at - task.ready_at for task in unfinished], dtype=np.float64)
        self.act_s = np.concatenate((self.actions.act_s, self.unfinished_s))
        self._unfinished_jobs = [self.jobs.index(task.rollout.job) for task in unfinished]
        self.cores_held_s = recorder.cores_held.integral()
        self.cores_used_s = recorder.cores_used.integral()
        self.gpus_held_s = recorder.gpus_held.integral()
        self.gpus_used_s = recorder.gpus_used.integral()

    @property
    def act_mean_s(self) -> float:
        """Mean ACT; nan without actions."""
        return _mean(self.act_s)

    def act_of_job_s(self, job: str) -> Floats:
        """ACT of every action of a job's trajectories; the job must be one of `jobs`."""
        jobs = np.concatenate((self.rollouts.job[self.actions.rollout], np.array(self._unfinished_jobs, np.int16)))
        of_job: npt.NDArray[np.bool_] = jobs == self.jobs.index(job)
        return self.act_s[of_job]

    def act_by_kind_s(self) -> dict[str, Floats]:
        """ACT of the `actions`, by the name of their kind."""
        kinds = {ActionKind(int(number)).name.lower(): self.actions.kind == number for number in set(self.actions.kind)}
        return {name: self.actions.act_s[chosen] for name, chosen in sorted(kinds.items())}

    @property
    def wait_max_s(self) -> float:
        """The longest wait (`Actions.wait_s`); an action that has not ended counts with its age."""
        longest = [part.max() for part in (self.actions.wait_s, self.unfinished_s) if part.size]
        return float(max(longest, default=0.0))

    @property
    def start_wait_mean_s(self) -> float:
        """Mean wait of trajectories before they began; those that still wait count with what they waited so far."""
        chosen = self.rollouts.arrived_at >= self.warm_up_s
        rollouts = self.rollouts
        never = np.where(rollouts.ended_at >= 0, rollouts.ended_at, self.ended_at)
        until = np.where(rollouts.began_at >= 0, rollouts.began_at, never)
        return _mean((until - rollouts.arrived_at)[chosen], empty=0.0)

    @property
    def step_s(self) -> float:
        """When the last trajectory ended."""
        return float(self.rollouts.ended_at.max(initial=0.0))

    @property
    def trajectories_per_hour(self) -> float:
        """Trajectories that finished in the steady window, by its length."""
        window_s = self.ended_at - self.warm_up_s
        ended_at = self.rollouts.ended_at[self.rollouts.finished]
        return float((ended_at >= self.warm_up_s).sum()) / window_s * 3600.0 if window_s > 0 else 0.0

    @property
    def held(self) -> float:
        """Core-seconds held by core-seconds there were; 0 without CPU nodes."""
        return self._share(self.cores_held_s, self.cores)

    @property
    def used(self) -> float:
        """Core-seconds used by core-seconds there were; 0 without CPU nodes."""
        return self._share(self.cores_used_s, self.cores)

    @property
    def gpu_held(self) -> float:
        """GPU-seconds held for calls by GPU-seconds there were; 0 without GPU nodes."""
        return self._share(self.gpus_held_s, self.gpus)

    @property
    def gpu_used(self) -> float:
        """GPU-seconds of serving by GPU-seconds there were; 0 without GPU nodes."""
        return self._share(self.gpus_used_s, self.gpus)

    def _share(self, unit_s: float, capacity: int) -> float:
        there_were = capacity * (self.ended_at - self.warm_up_s)
        return unit_s / there_were if there_were > 0 else 0.0


def _arrays(columns: ActionColumns | RolloutColumns) -> dict[str, Any]:
    return {name: np.array(column) for name, column in vars(columns).items()}


def _mean(values: Floats, empty: float = float("nan")) -> float:
    return float(values.mean()) if values.size else empty
