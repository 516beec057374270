"""One run: a scenario, a policy, and the world between them, calls of outside APIs under quotas among it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from callsheet.benchmarks.simulator.closed_loop import ClosedLoop, Progress
from callsheet.benchmarks.simulator.events import EventQueue
from callsheet.benchmarks.simulator.measurements import Measurements, Recorder
from callsheet.benchmarks.simulator.physics.cpu_nodes import CommandAttempt, CpuMachine
from callsheet.benchmarks.simulator.physics.gpu_nodes import GpuMachine
from callsheet.benchmarks.simulator.physics.machines import Attempt, EndListener, Machine, Used
from callsheet.benchmarks.simulator.policy import EndFacts, Lane, LiveRollout, Policy, Task, World
from callsheet.benchmarks.simulator.quota_books import ROUNDING_S, QuotaBooks
from callsheet.benchmarks.simulator.scenario import (
    Cluster,
    Mode,
    Quota,
    Rollout,
    Scenario,
    Work,
    check_scenario,
)
from callsheet.scheduler.core.words.model import ActionKind


def simulate(scenario: Scenario, make_policy: Callable[[World], Policy]) -> Measurements:
    """Runs a scenario under a policy in virtual time. The same arguments give the same numbers.

    Raises:
        ValueError: The scenario breaks a rule, or the policy did.
        RuntimeError: The policy left trajectories unfinished though nothing more would happen.
    """
    check_scenario(scenario)
    return _Simulation(scenario).run(make_policy)


class _Simulation:
    """The world that a policy sees (`World`), put together from its physics."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self._events = EventQueue()
        self._recorder = Recorder(self._events, scenario.warm_up_s)
        cluster = scenario.cluster
        events, recorder, ended = self._events, self._recorder, self._attempt_ended
        self._cpus = CpuMachine(cluster, events, used=recorder.cores_used, held=recorder.cores_held, ended=ended)
        self._gpus = GpuMachine(cluster, events, used=recorder.gpus_used, held=recorder.gpus_held, ended=ended)
        self._apis = Apis(cluster, events, ended)
        self._loop = ClosedLoop(self._events, self._recorder, self._end)
        self._progress: dict[LiveRollout, Progress] = {}
        self._attempts: dict[Task, Attempt] = {}
        self._failures: dict[Task, int] = {}
        self._drawn = 0  # of the scenario's trajectories, counted on from the first again after the last
        self._over = 0
        self._policy: Policy

    def run(self, make_policy: Callable[[World], Policy]) -> Measurements:
        """Runs to the end; once."""
        self._policy = self._loop.policy = make_policy(self)
        scenario, sustained = self.scenario, self.scenario.mode is Mode.SUSTAINED
        for _ in range(min(scenario.live, len(scenario.rollouts)) if sustained else len(scenario.rollouts)):
            rollout = self._draw()
            self._events.at(rollout.arrives, self._arrive, rollout)
        if self._events.run(scenario.horizon_s) and self._progress:
            names = ", ".join(sorted(live.rollout.name for live in self._progress)[:3])
            raise RuntimeError(
                f"policy {self._policy.name} left {len(self._progress)} trajectories unfinished ({names}, ...): "
                f"nothing runs and nothing is due after {self._events.now:.3f} s"
            )
        unfinished = [task for progress in self._progress.values() for task in progress.pending]
        return Measurements(scenario, self._events.now, self._recorder, unfinished)

    # What a policy sees and does.

    @property
    def now(self) -> float:
        """See `World`."""
        return self._events.now

    def begin(self, live: LiveRollout) -> None:
        """See `World`."""
        if live.began_at >= 0 or live.ended_at >= 0:
            raise ValueError(f"live: {live.rollout.name} began before, or has ended")
        progress = self._progress[live]
        live.began_at = self._events.now
        self._recorder.began(progress.index)
        self._events.at(self._events.now, self._loop.begin, progress)

    def start(self, task: Task, *, node: str, width: int = 1, lane: Lane = Lane.FOREGROUND, delay: float = 0.0) -> None:
        """See `World`."""
        if task in self._attempts or task.ended_at >= 0:
            raise ValueError(f"task: {task.work.kind.name} of {task.rollout.name} runs already, or has ended")
        attempt = self._machine(task.work).admit(task, node, width, lane)
        now = self._events.now
        task.started_at = now
        task.queue_s = now - task.ready_at - task.execution_s - task.overhead_s - task.waited_s
        task.node, task.width, task.lane = node, width, lane
        attempt.delay = delay
        self._attempts[task] = attempt
        if delay > 0:
            self._events.at(now + delay, attempt.machine.execute, attempt)
        else:
            attempt.machine.execute(attempt)

    def set_lane(self, task: Task, lane: Lane) -> None:
        """See `World`."""
        self._cpus.set_lane(self._command(task), lane)
        task.lane = lane

    def set_width(self, task: Task, width: int) -> None:
        """See `World`."""
        self._cpus.set_width(self._command(task), width)
        task.width = width

    def cpu_attained(self, task: Task) -> float:
        """See `World`."""
        return self._cpus.attained(self._command(task))

    def resident(self, node: str) -> Counter[str]:
        """See `World`."""
        return self._gpus.node(node).resident()

    def set_up_s(self, node: str, model: str) -> float | None:
        """See `World`."""
        return self._gpus.set_up_s(node, model)

    def wake_at(self, at: float) -> None:
        """See `World`."""
        self._events.at(at, self._wake, None)

    # Trajectories.

    def _draw(self) -> Rollout:
        cycle, index = divmod(self._drawn, len(self.scenario.rollouts))
        self._drawn += 1
        rollout = self.scenario.rollouts[index]
        if not cycle:
            return rollout
        return replace(rollout, name=f"{rollout.name}/{cycle}", group=f"{rollout.group}/{cycle}")

    def _arrive(self, rollout: Rollout) -> None:
        live = LiveRollout(rollout, self._events.now)
        progress = Progress(live, self._recorder.arrived(rollout.job))
        self._progress[live] = progress
        self._policy.arrived(live)

    def _end(self, progress: Progress) -> None:
        live = progress.live
        live.ended_at = self._events.now
        del self._progress[live]
        self._cpus.remove_sandbox(live)
        self._recorder.ended(progress.index)
        self._policy.finished(live)
        self._replace()

    def _replace(self) -> None:
        self._over += 1
        if self.scenario.mode is Mode.SUSTAINED:
            self._events.at(self._events.now, self._arrive, self._draw())
        elif self._over == len(self.scenario.rollouts):
            self._events.stop()

    # Attempts.

    def _machine(self, work: Work) -> Machine:
        if work.service:
            return self._gpus
        return self._apis if work.quota else self._cpus

    def _command(self, task: Task) -> CommandAttempt:
        attempt = self._attempts.get(task)
        if not isinstance(attempt, CommandAttempt):
            raise ValueError(f"task: {task.work.kind.name} of {task.rollout.name} is no running command")
        return attempt

    def _release(self, attempt: Attempt) -> Used:
        task = attempt.task
        elapsed = self._events.now - task.started_at
        overhead = min(attempt.delay, elapsed)
        task.overhead_s += overhead
        used = attempt.machine.release(attempt)
        # A call that an API refused has waited for nothing.
        waited = 0.0 if task.work.quota else max(elapsed - overhead - used.clock_s, 0.0)
        task.waited_s += waited
        task.execution_s += elapsed - overhead - waited
        return used

    def _attempt_ended(self, attempt: Attempt, *, timed_out: bool = False, refused_for_s: float = -1.0) -> None:
        task = attempt.task
        del self._attempts[task]
        used = self._release(attempt)
        if refused_for_s >= 0:
            self._recorder.counts["refusals"] += 1
            self._retry(task, _facts(task, used, failed=True, retry_after_s=refused_for_s))
        elif not timed_out and self._failures.get(task, 0) < task.work.fails:
            self._recorder.counts["failures"] += 1
            self._failures[task] = self._failures.get(task, 0) + 1
            self._retry(task, _facts(task, used, failed=True))
        else:
            self._recorder.counts["timeouts"] += timed_out
            self._failures.pop(task, None)
            task.ended_at = self._events.now
            self._policy.ended(task, _facts(task, used, timed_out=timed_out))
            self._loop.ended(self._progress[task.live], task)

    def _retry(self, task: Task, facts: EndFacts) -> None:
        if task.work.kind is ActionKind.ENV_RESET:
            self._cpus.remove_sandbox(task.live)
        self._policy.ended(task, facts)
        if task.work.kind is ActionKind.ENV_RESET:
            task.live.node = ""
        task.attempt += 1
        task.started_at = -1.0
        task.node = ""
        self._policy.ready(task)

    def _wake(self, _: None) -> None:
        self._policy.woken()


def _facts(
    task: Task,
    used: Used,
    *,
    failed: bool = False,
    timed_out: bool = False,
    retry_after_s: float = 0.0,
) -> EndFacts:
    """What a manager measures of an attempt that ended."""
    peak = task.work.peak_memory_mb
    return EndFacts(failed, timed_out, retry_after_s, used.cpu_s, peak, used.clock_s)


class Api:
    """What one API lets through."""

    def __init__(self, quota: Quota) -> None:
        self.quota = quota
        self.running = 0
        self._books = QuotaBooks(quota)

    def accept(self, tokens: int, now: float) -> bool:
        """Whether the API takes a call; counts it if so."""
        if self.running >= self.quota.concurrency or self._books.wait_s(tokens, now) > ROUNDING_S:
            return False
        self._books.take(tokens)
        self.running += 1
        return True


class ApiAttempt(Attempt):
    """A call of an API."""

    __slots__ = ("accepted_at", "api")

    def __init__(self, task: Task, machine: Machine, api: Api) -> None:
        super().__init__(task, machine)
        self.api = api
        self.accepted_at = -1.0


class Apis:
    """All APIs: a `Machine` for calls."""

    def __init__(self, cluster: Cluster, events: EventQueue, ended: EndListener) -> None:
        self._events = events
        self._ended = ended
        self._apis = {quota.name: Api(quota) for quota in cluster.quotas}

    def admit(self, task: Task, node: str, width: int, lane: Lane) -> Attempt:
        """See `Machine`. Node, width and lane mean nothing here."""
        return ApiAttempt(task, self, self._apis[task.work.quota])

    def execute(self, attempt: Attempt) -> None:
        """See `Machine`: the call is accepted, or refused."""
        call = cast(ApiAttempt, attempt)
        now, work = self._events.now, call.task.work
        if call.api.accept(work.tokens, now):
            call.accepted_at = now
            self._events.at(now + min(work.service_s, work.timeout_s), self._answered, call)
        else:
            self._events.at(now + call.api.quota.refusal_s, self._refused, call)

    def release(self, attempt: Attempt) -> Used:
        """See `Machine`. What a call took of a quota does not come back."""
        call = cast(ApiAttempt, attempt)
        if call.accepted_at < 0:
            return Used(0.0, 0.0)
        call.api.running -= 1
        return Used(0.0, self._events.now - call.accepted_at)

    def _answered(self, call: ApiAttempt) -> None:
        work = call.task.work
        self._ended(call, timed_out=work.service_s > work.timeout_s)

    def _refused(self, call: ApiAttempt) -> None:
        self._ended(call, refused_for_s=call.api.quota.retry_after_s)
