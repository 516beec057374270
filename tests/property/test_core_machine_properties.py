"""Whatever happens, in whatever order: the books agree, an action has one outcome, and no step starts twice.

Managers keep the contract but die, break off and come back as they like; plans are the planner's or nonsense; tokens
are right or stale; schedulers are restarted. An action's state changes only as the table has it. In the end everything
has its outcome and every unit is back.
"""

from __future__ import annotations

import math
from functools import partial

import pytest
from callsheet.scheduler.core.state.entities import Action
from callsheet.scheduler.core.state.held_memory import LEAST_LIVES
from callsheet.scheduler.core.state.transitions import CHANGES
from callsheet.scheduler.core.words import commands, events
from callsheet.scheduler.core.words.events import PlanReady
from callsheet.scheduler.core.words.model import (
    ActionKey,
    ActionKind,
    FailureKind,
    GroupRequest,
    RetryPolicy,
    SandboxCopy,
    Timeouts,
    Token,
    TrajectoryEnd,
)
from callsheet.scheduler.core.words.plan import Assignment, Plan
from callsheet.scheduler.core.words.registration import SandboxRef
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, precondition, rule, run_state_machine_as_test

from tests.support.checked_core import SANDBOX_KINDS, UNLIMITED, CheckedCore, CheckedWorld
from tests.support.core_managers import FaithfulManager
from tests.support.core_requests import action_request, elastic, fixed, job_request, kept, trajectory_request
from tests.support.core_world import Stream
from tests.support.peers import Peer
from tests.support.samples import examples

GRACE = 60.0
JOB_REQUESTS = {
    "job": job_request("job", grace=GRACE),
    "other": job_request("other", max_actions=12, max_staleness=1, grace=2 * GRACE),
}
SESSIONS = ("client", "second", None)
JOBS = tuple(JOB_REQUESTS)
TRAJECTORIES = ("t1", "t2", "t3")
MANAGERS = ("sandboxes", "tests", "engine", "pool")
DEMANDS = {
    ActionKind.GENERATE: [fixed(), fixed(cpu=1)],
    ActionKind.ENV_RESET: [kept(start_cpu=1, memory=256), kept(cpu=1, memory=10), kept()],
    ActionKind.ENV_STEP: [fixed(cpu=1), fixed(), elastic(0, 2), elastic(1, 3)],
    ActionKind.TOOL_CALL: [fixed(), fixed(api=1), fixed(api=3), elastic(1, 4, resource="api")],
    ActionKind.REWARD: [fixed(cpu=1), fixed(cpu=3), elastic(1, 8)],
}
TIMEOUTS = [
    Timeouts(400.0, 300.0, 500.0),
    Timeouts(20.0, 10.0, 60.0),
    Timeouts(60.0, 30.0, 60.0, heartbeat=3.0),
]
RETRIES = [RetryPolicy(), RetryPolicy(max_attempts=1), RetryPolicy(max_attempts=5, initial_backoff=0.0)]
RESULTS: list[events.AttemptResult | None] = [
    None,
    None,
    events.AttemptCancelled(b"half"),
    *[events.AttemptFailed(kind, "made_to_fail") for kind in FailureKind],
    events.AttemptFailed(FailureKind.QUOTA, "slow_down", retry_after=7.0),
    events.AttemptSucceeded(b"odd", "invented", "t1"),
]
# The first is not known; demands are 256 and 10.
HELD_MIB = (0, 1, 40, 200, 300)


class CoreMachine(CheckedCore):
    """See the module's docstring."""

    @initialize()
    def open(self) -> None:
        for job_id in JOBS:
            self.world.job(JOB_REQUESTS[job_id])
            for trajectory_id in TRAJECTORIES:
                self._open_trajectory(job_id, trajectory_id)
        for _ in range(LEAST_LIVES):
            self.world.state.held_memory.learn("job", "", 40)
        for manager in self.managers.values():
            manager.register()
        for trajectory_id in TRAJECTORIES:
            self.pipeline("job", trajectory_id, 2)
        self.plan()

    def _open_trajectory(self, job_id: str, trajectory_id: str) -> None:
        group = GroupRequest("g", 3, 2) if job_id == "other" else None
        deadline = 400.0 if trajectory_id == "t3" else 0.0
        request = trajectory_request(trajectory_id, job_id=job_id, group=group, idle_timeout=300.0, deadline=deadline)
        self.world.trajectory(request)

    # -- clients ------------------------------------------------------------------------------------------------------

    @rule(data=st.data(), job_id=st.sampled_from(JOBS), kind=st.sampled_from(list(ActionKind)))
    def submit(self, data: st.DataObject, job_id: str, kind: ActionKind) -> None:
        self.numbers += 1
        needs = kind in SANDBOX_KINDS
        request = action_request(
            f"a{self.numbers}",
            kind,
            data.draw(st.sampled_from(TRAJECTORIES if needs else ("", *TRAJECTORIES))),
            job_id=job_id,
            demand=data.draw(st.sampled_from(DEMANDS[kind])),
            timeouts=data.draw(st.sampled_from(TIMEOUTS)),
            retry=data.draw(st.sampled_from(RETRIES)),
            weight=data.draw(st.sampled_from([1.0, 0.5, 7.0])),
            wait=data.draw(st.booleans()),
        )
        if kind is ActionKind.REWARD and request.trajectory_id and data.draw(st.booleans()):
            copy = data.draw(st.sampled_from(SandboxCopy))
            request = action_request(
                f"a{self.numbers}",
                kind,
                request.trajectory_id,
                job_id=job_id,
                timeouts=TIMEOUTS[0],
                in_sandbox=copy is SandboxCopy.NEVER,
                copy=copy,
            )
        if self.asked(lambda: self.world.submit(request)):
            self.requests[request.key] = request

    @rule(job_id=st.sampled_from(JOBS), trajectory_id=st.sampled_from(TRAJECTORIES), steps=st.integers(1, 3))
    def pipeline(self, job_id: str, trajectory_id: str, steps: int) -> None:
        """A reset and what follows it, all submitted at once."""
        kinds = [ActionKind.ENV_RESET, *[ActionKind.ENV_STEP] * steps, ActionKind.REWARD]
        for index, kind in enumerate(kinds):
            self.numbers += 1
            request = action_request(
                f"a{self.numbers}", kind, trajectory_id, job_id=job_id, timeouts=TIMEOUTS[0], in_sandbox=index > 0
            )
            if self.asked(partial(self.world.submit, request)):
                self.requests[request.key] = request

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        request = self.requests[data.draw(st.sampled_from(sorted(self.requests)))]
        before = len(self.world.delivered)
        if self.asked(lambda: self.world.submit(request, watcher=f"again {before}")) and request.key in self.finished:
            assert len(self.world.delivered) == before + 1

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.requests)))
        if self.asked(lambda: self.world.cancel(key)):
            self.cancelled.add(key)

    @rule(job_id=st.sampled_from(JOBS), trajectory_id=st.sampled_from(TRAJECTORIES), end=st.sampled_from(TrajectoryEnd))
    def close_trajectory(self, job_id: str, trajectory_id: str, end: TrajectoryEnd) -> None:
        self.asked(lambda: self.world.close_trajectory(trajectory_id, end, job_id=job_id))

    @rule(job_id=st.sampled_from(JOBS), version=st.integers(0, 3))
    def publish(self, job_id: str, version: int) -> None:
        self.asked(lambda: self.world.publish(version, job_id))

    @rule(session=st.sampled_from(SESSIONS))
    def speak_as(self, session: str | None) -> None:
        """From now on requests come on this session's stream, or by unary rpcs."""
        self.world.session = session

    @precondition(lambda self: self.world.session is not None)
    @rule(job_id=st.sampled_from(JOBS), held=st.booleans())
    def hold_or_release(self, job_id: str, held: bool) -> None:
        self.asked(partial(self.world.hold if held else self.world.release, job_id))
        assert (Peer(self.world.session) in self.world.state.jobs[job_id].lease.sessions) == held

    @rule(session=st.sampled_from(SESSIONS[:2]))
    def end_session(self, session: str) -> None:
        self.world.end_session(session)
        self.read_streams()
        assert all(Peer(session) not in job.lease.sessions for job in self.world.state.jobs.values())

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), job_id=st.sampled_from(JOBS), what=st.sampled_from(["job", "group", "trajectory"]))
    def cancel_work(self, data: st.DataObject, job_id: str, what: str) -> None:
        group_id = "g" if what == "group" else ""
        trajectory_id = data.draw(st.sampled_from(TRAJECTORIES)) if what == "trajectory" else ""
        self.asked(lambda: self.world.cancel_work(group_id, trajectory_id, job_id=job_id))

    @rule(job_id=st.just("other"))
    def close_and_reopen_job(self, job_id: str) -> None:
        self.asked(lambda: self.world.close_job(job_id))
        for key in [key for key in self.requests if key.job_id == job_id]:
            del self.requests[key]
            self.finished.pop(key, None)
            self.cancelled.discard(key)
        self.world.job(JOB_REQUESTS[job_id])
        for trajectory_id in TRAJECTORIES:
            self._open_trajectory(job_id, trajectory_id)

    # -- operators ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.requests)
    @rule(data=st.data(), cores=st.integers(0, 4))
    def resize(self, data: st.DataObject, cores: int) -> None:
        self.world.resize(data.draw(st.sampled_from(sorted(self.requests))), cores)

    @rule(manager_id=st.sampled_from(MANAGERS), deadline=st.sampled_from([0.0, 5.0, math.inf]))
    def drain(self, manager_id: str, deadline: float) -> None:
        self.asked(lambda: self.world.drain(manager_id, deadline=deadline))

    # -- planning -----------------------------------------------------------------------------------------------------

    @rule()
    def plan(self) -> None:
        self.world.plan()
        self.read_streams()

    @rule(most=st.sampled_from([0, 1, 2, UNLIMITED]))
    def narrow_the_gate(self, most: int) -> None:
        """From now on so many trajectories of a job may live."""
        self.gate.most = most

    @rule(data=st.data())
    def hostile_plan(self, data: st.DataObject) -> None:
        keys = st.sampled_from([*sorted(self.requests), ActionKey("job", "unknown"), ActionKey("nobody", "a1")])
        units = st.dictionaries(st.sampled_from(["cpu", "memory", "gpu", "api"]), st.integers(-1, 300), max_size=3)
        assignment = st.builds(Assignment, keys, st.sampled_from([*MANAGERS, "nobody"]), units)
        keys_of_trajectories = st.tuples(st.sampled_from([*JOBS, "nobody"]), st.sampled_from([*TRAJECTORIES, "none"]))
        admitted = data.draw(st.lists(keys_of_trajectories, max_size=2))
        plan = Plan(tuple(data.draw(st.lists(assignment, max_size=4))), admitted=tuple(admitted))
        for command in self.world.handle(PlanReady(plan)):
            if isinstance(command, commands.Dispatch):
                self.check_grant(command)
        self.read_streams()

    # -- managers -----------------------------------------------------------------------------------------------------

    def _attempts(self, manager: FaithfulManager, *, started: bool) -> list[Token]:
        return sorted(manager.running if started else manager.received)

    @rule(starts=st.integers(0, 4), ends=st.integers(0, 4), held_mib=st.sampled_from(HELD_MIB))
    def work(self, starts: int, ends: int, held_mib: int) -> None:
        """A planning round, and managers that get on with it."""
        self.plan()
        for manager in self.managers.values():
            for token in self._attempts(manager, started=False)[:starts]:
                manager.start(token)
            for token in self._attempts(manager, started=True)[:ends]:
                manager.end(token, held_mib=held_mib)
        self.read_streams()

    @rule(data=st.data(), manager_id=st.sampled_from(MANAGERS))
    def start(self, data: st.DataObject, manager_id: str) -> None:
        manager = self.managers[manager_id]
        waiting = self._attempts(manager, started=False)
        if waiting:
            manager.start(data.draw(st.sampled_from(waiting)))
            self.read_streams()

    @rule(
        data=st.data(),
        manager_id=st.sampled_from(MANAGERS),
        result=st.sampled_from(RESULTS),
        held_mib=st.sampled_from(HELD_MIB),
    )
    def end(self, data: st.DataObject, manager_id: str, result: events.AttemptResult | None, held_mib: int) -> None:
        manager = self.managers[manager_id]
        attempts = self._attempts(manager, started=True) + self._attempts(manager, started=False)
        if attempts:
            manager.end(data.draw(st.sampled_from(attempts)), result, held_mib=held_mib)
            self.read_streams()

    @rule(manager_id=st.sampled_from(MANAGERS), share=st.sampled_from([0.0, 0.3, 1.0]))
    def progress(self, manager_id: str, share: float) -> None:
        """All attempts of a manager tell how much of their time they were granted."""
        manager = self.managers[manager_id]
        for token in self._attempts(manager, started=True):
            manager.progress(token, share)
        self.read_streams()

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), manager_id=st.sampled_from(MANAGERS))
    def speak_out_of_turn(self, data: st.DataObject, manager_id: str) -> None:
        """Old tokens, and tokens of others, start and end nothing."""
        token = data.draw(st.sampled_from(self.tokens))
        attempt = self.world.state.attempts.get(token)
        if attempt is not None and attempt.manager_id == manager_id:
            return
        self.world.handle(events.AttemptStarted(manager_id, token), events.AttemptProgressed(manager_id, token))
        assert self.world.state.attempts.get(token) is attempt

    @rule(manager_id=st.sampled_from(MANAGERS), lose=st.booleans())
    def break_stream(self, manager_id: str, lose: bool) -> None:
        self.managers[manager_id].break_stream(lose_dispatches=lose)

    @rule(manager_id=st.sampled_from(MANAGERS), new=st.booleans(), heartbeat=st.booleans())
    def register(self, manager_id: str, new: bool, heartbeat: bool) -> None:
        manager = self.managers[manager_id]
        if new:
            manager.restart()
        manager.register(heartbeat=heartbeat)
        self.read_streams()

    @rule(manager_id=st.sampled_from(MANAGERS))
    def heartbeat(self, manager_id: str) -> None:
        if self.managers[manager_id].connected:
            self.managers[manager_id].fake.heartbeat()
            self.read_streams()

    @rule(data=st.data(), manager_id=st.sampled_from(MANAGERS))
    def lose_sandbox(self, data: st.DataObject, manager_id: str) -> None:
        manager = self.managers[manager_id]
        if manager.sandboxes and manager.connected:
            place = data.draw(st.sampled_from(sorted(manager.sandboxes)))
            ref = SandboxRef(*place, manager.sandboxes.pop(place))
            self.world.handle(events.SandboxLost(manager_id, ref, "killed"))
            self.read_streams()

    # -- time and crashes ---------------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 11.0, 70.0]), alive=st.booleans())
    def wait(self, seconds: float, alive: bool) -> None:
        until = self.world.now + seconds
        while self.world.now < until:
            for manager in self.managers.values():
                if alive and manager.connected:
                    manager.fake.heartbeat()
            self.world.wait(min(5.0, until - self.world.now))
            self.read_streams()

    @rule(back=st.sets(st.sampled_from(MANAGERS)), heartbeat=st.booleans())
    def restart_scheduler(self, back: set[str], heartbeat: bool) -> None:
        before = self.world
        self.read_streams()
        restarted = before.restart()
        restarted.__class__ = CheckedWorld
        assert isinstance(restarted, CheckedWorld)
        restarted.outcomes, restarted.delivered = before.outcomes, before.delivered
        restarted.consumed = before.consumed
        restarted.session = before.session
        self.world = restarted
        for manager in self.managers.values():
            manager.connected = False
            manager.fake.world, manager.fake.stream = restarted, Stream()
        for manager_id in sorted(back):
            self.managers[manager_id].register(heartbeat=heartbeat)
        self.read_streams()

    def teardown(self) -> None:
        """Calm: everybody comes back, everything runs to its end, every unit returns."""
        self.gate.most = UNLIMITED
        for manager in self.managers.values():
            manager.register()
        for _ in range(60):
            self.plan()
            for manager in self.managers.values():
                for token in list(manager.received):
                    manager.start(token)
                for token in list(manager.running):
                    manager.end(token)
            self.wait(11.0, alive=True)
            if not self.world.state.open_actions and not any(
                manager.received or manager.running for manager in self.managers.values()
            ):
                break
        self.nothing_finished_comes_back()
        assert not self.world.state.open_actions, [
            self.world.why(key) for key in self.requests if key not in self.finished
        ]
        self.leases_run_out()
        for job_id in JOBS:
            self.world.close_job(job_id)
        self.wait(70.0, alive=True)
        self.wait(70.0, alive=True)
        assert not self.world.state.attempts
        assert not self.world.state.orphans
        for each in self.world.state.nodes.values():
            assert not each.granted, each.granted
        for manager in self.managers.values():
            assert not manager.sandboxes, manager.sandboxes
            assert not manager.kept, manager.kept

    def leases_run_out(self) -> None:
        """A job that nobody holds expires; one that somebody holds does not, and ends its having expired by that."""
        self.world.session = "client"
        for job_id in JOBS:
            self.world.hold(job_id)
            assert not self.world.state.jobs[job_id].lease.expired
        self.world.end_session("second")
        self.world.release("other")
        for _ in range(int(2 * GRACE / 10.0) + 1):
            self.wait(10.0, alive=True)
        assert not self.world.state.jobs["job"].lease.expired
        assert self.world.state.jobs["other"].lease.expired
        assert not self.world.state.jobs["other"].trajectories


# Passes in a few seconds; a failure takes minutes to shrink.
@pytest.mark.timeout(600)
def test_the_core_under_random_events(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed = {(source, change.target) for change in CHANGES for source in change.sources}

    def assign(action: Action, name: str, value: object) -> None:
        assert name != "state" or not hasattr(action, name) or (action.state, value) in allowed, action.story
        object.__setattr__(action, name, value)

    monkeypatch.setattr(Action, "__setattr__", assign)
    phases = (Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink)
    run_state_machine_as_test(
        CoreMachine, settings=settings(max_examples=examples(40), stateful_step_count=50, phases=phases)
    )
