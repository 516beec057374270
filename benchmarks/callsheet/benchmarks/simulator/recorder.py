"""Writes down what happens in a run, in columns: a million actions are no objects."""

from __future__ import annotations

from array import array

from callsheet.benchmarks.simulator.best_case import action_s
from callsheet.benchmarks.simulator.events import EventQueue, Level
from callsheet.benchmarks.simulator.policy import LiveRollout, Task


class ActionColumns:
    """An entry for every action that ended by itself; see `measurements.Actions`."""

    def __init__(self) -> None:
        self.rollout = array("q")
        self.kind = array("b")
        self.ready_at = array("d")
        self.ended_at = array("d")
        self.queue_s = array("d")
        self.execution_s = array("d")
        self.overhead_s = array("d")
        self.alone_s = array("d")
        self.best_s = array("d")


class RolloutColumns:
    """An entry for every trajectory that arrived, in that order; see `measurements.Rollouts`."""

    def __init__(self) -> None:
        self.job = array("h")
        self.arrived_at = array("d")
        self.began_at = array("d")
        self.ended_at = array("d")
        self.cancelled = array("b")


class Recorder:
    """What a run leaves behind; `Measurements` reads it. Levels are integrated after the warm-up.

    Attributes:
        cores_held: Cores booked for running commands, or reserved; at most what a node has.
        cores_used: Cores at work.
        gpus_held: GPUs of instances that serve a call or come for one.
        gpus_used: GPUs of instances that serve a call.
        outstanding: External actions that are ready or run.
        live: Trajectories that began and have not ended.
    """

    def __init__(self, events: EventQueue, warm_up_s: float) -> None:
        self._events = events
        self.cores_held = Level(events, warm_up_s)
        self.cores_used = Level(events, warm_up_s)
        self.gpus_held = Level(events, warm_up_s)
        self.gpus_used = Level(events, warm_up_s)
        self.outstanding = Level(events, warm_up_s)
        self.live = Level(events, warm_up_s)
        self.jobs: dict[str, int] = {}
        self.counts = dict.fromkeys(("failures", "refusals", "timeouts", "redundant", "by_policy"), 0)
        self.actions = ActionColumns()
        self.rollouts = RolloutColumns()
        self.turns_ended_at = array("d")

    def arrived(self, job: str) -> int:
        """Notes a trajectory of a job; returns its index."""
        rollouts = self.rollouts
        rollouts.job.append(self.jobs.setdefault(job, len(self.jobs)))
        rollouts.arrived_at.append(self._events.now)
        rollouts.began_at.append(-1.0)
        rollouts.ended_at.append(-1.0)
        rollouts.cancelled.append(0)
        return len(rollouts.arrived_at) - 1

    def began(self, index: int) -> None:
        """Notes that a trajectory was let in."""
        self.rollouts.began_at[index] = self._events.now
        self.live.add(1)

    def ended(self, index: int, live: LiveRollout) -> None:
        """Notes the end of a trajectory, or that it was cancelled."""
        self.rollouts.ended_at[index] = self._events.now
        self.rollouts.cancelled[index] = live.cancelled
        if live.began_at >= 0:
            self.live.add(-1)

    def turn_ended(self) -> None:
        """Notes that a trajectory's turn is over."""
        self.turns_ended_at.append(self._events.now)

    def action_ended(self, rollout: int, task: Task) -> None:
        """Notes an action that ended by itself, after its last attempt."""
        self.outstanding.add(-1)
        work, actions = task.work, self.actions
        actions.rollout.append(rollout)
        actions.kind.append(work.kind)
        actions.ready_at.append(task.ready_at)
        actions.ended_at.append(task.ended_at)
        actions.queue_s.append(task.queue_s)
        actions.execution_s.append(task.execution_s)
        actions.overhead_s.append(task.overhead_s)
        actions.alone_s.append(min(work.alone_s(task.width), work.timeout_s))
        actions.best_s.append(action_s(work))
