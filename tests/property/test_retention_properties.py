"""No action runs twice, whatever order retention, resubmits, restarts and lives of its job come in."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from callsheet.scheduler.core.words.commands import Dispatch
from callsheet.scheduler.core.words.model import ActionState, Token
from callsheet.scheduler.core.words.refusals import RefusedError
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.support.core_requests import action_request, fixed
from tests.support.core_world import SETTINGS, CoreWorld, FakeManager, Stream
from tests.support.samples import examples

KEPT = 4
IDS = st.sampled_from([f"a{number}" for number in range(12)])
BODIES = st.sampled_from(["", "", "", "other"])


class Retention(RuleBasedStateMachine):
    """One job, a manager that runs what it is given, and a scheduler that keeps little and restarts."""

    @initialize()
    def begin(self) -> None:
        """Opens the job."""
        self.world = CoreWorld(settings=replace(SETTINGS, finished_actions=KEPT, finished_actions_s=50.0))
        self.manager: FakeManager = self.world.manager()
        self.life = 0
        self.bodies: dict[str, str] = {}
        self.runs: Counter[tuple[int, str]] = Counter()
        self.seen: set[Token] = set()
        self.held: dict[Token, Dispatch] = {}
        self.world.job()

    @rule(actions=st.lists(IDS, min_size=1, max_size=6), body=BODIES)
    def submit(self, actions: list[str], body: str) -> None:
        """Submits actions, for the first time or again, with the body of the first time or another one."""
        for action in actions:
            self._submit_one(action, body)

    def _submit_one(self, action: str, body: str) -> None:
        known = self.bodies.get(action)
        refusal = self._refusal_of(action, body)
        if refusal is None:
            assert known in (None, body), f"{action} was accepted with two bodies"
            self.bodies[action] = body
            return
        assert known is not None, f"{action} is new, and refused: {refusal}"
        assert refusal.forgotten == (known == body), f"{refusal}"
        assert ("another body" in refusal.rule) == (known != body), f"{refusal}"

    def _refusal_of(self, action: str, body: str) -> RefusedError | None:
        try:
            self.world.submit(action_request(action, demand=fixed(cpu=1), body=body))
        except RefusedError as refusal:
            return refusal
        return None

    def _take(self) -> None:
        """The manager begins what it was sent."""
        for grant in self.manager.stream.all(Dispatch):
            if grant.token not in self.seen:
                self.seen.add(grant.token)
                self.held[grant.token] = grant
                self.runs[self.life, grant.request.key.action_id] += 1
                self.manager.start(grant)

    @rule()
    def begin_work(self) -> None:
        """Begins what is queued."""
        self.world.plan()
        self._take()

    @rule()
    def end_work(self) -> None:
        """Ends all that the manager runs, of whatever life of the job."""
        self._take()
        for token in list(self.held):
            self.manager.end(self.held.pop(token))

    @rule(seconds=st.sampled_from([1.0, 30.0, 60.0]))
    def wait(self, seconds: float) -> None:
        """Lets time pass."""
        self.manager.live(seconds)

    @rule(away=st.sampled_from([0.0, 1_000.0]))
    def restart(self, away: float) -> None:
        """The scheduler is killed, and another one continues."""
        self._take()
        self.world.now += away
        self.world = self.world.restart()
        self.manager.world, self.manager.stream = self.world, Stream()
        self.manager.join([self.manager.running(grant) for grant in self.held.values()])

    @precondition(lambda self: len(self.bodies) > 2 * KEPT)
    @rule()
    def live_again(self) -> None:
        """Closes the job and opens it again."""
        self._take()
        self.world.close_job()
        self.life += 1
        self.bodies.clear()
        self.world.outcomes.clear()
        self.world.job()

    @invariant()
    def nothing_runs_twice(self) -> None:
        """What this is about; the core's own invariants are checked with every step."""
        twice = [key for key, times in self.runs.items() if times > 1]
        assert not twice, f"{twice} ran again"
        for action_id, action in self.world.state.jobs["job"].actions.items():
            own = action.state is not ActionState.SUCCEEDED or self.runs[self.life, action_id]
            assert own, f"{action_id} has an outcome of a former life"

    @invariant()
    def little_is_kept(self) -> None:
        """Beyond the bound something goes within the next step."""
        self.world.wait(0.0)
        self._take()
        assert self.world.state.finished_actions <= KEPT
        job = self.world.state.jobs["job"]
        known = {*job.actions, *(each for each in self.bodies if each in job.forgotten)}
        assert known == self.bodies.keys(), "an id of this life is neither kept nor forgotten"


def test_nothing_that_was_forgotten_runs_again() -> None:
    run_state_machine_as_test(
        Retention, settings=settings(max_examples=examples(40), stateful_step_count=40, deadline=None)
    )
