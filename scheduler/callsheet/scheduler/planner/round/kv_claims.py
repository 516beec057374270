"""Decides which acting trajectories keep their places in KV caches, by what is known of their tool calls.

A claim begins when a generation ends, before its tool call has come. Once the call is there, the claim is judged: the
time that the call is expected to take, and to wait before, decides if the place is kept at all.
"""

from __future__ import annotations

from callsheet.scheduler.core.state.entities import Action, Trajectory
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words.model import ActionKind, ActionState, TrajectoryKey
from callsheet.scheduler.planner.engines.claims import KvClaim, keep_for_s
from callsheet.scheduler.planner.engines.knowledge import EngineKnowledge
from callsheet.scheduler.planner.round.estimates import Estimates

# Claims that a round judges at most; the others have their turn in the next ones.
MOST_JUDGED = 256


class ClaimJudge:
    """Judges each claim once, when its trajectory's tool call is known."""

    def __init__(self, knowledge: EngineKnowledge, estimates: Estimates) -> None:
        """Starts with nothing to judge.

        Args:
            knowledge: Whose claims.
            estimates: What tool calls are expected to take.
        """
        self._knowledge = knowledge
        self._estimates = estimates
        self._unjudged: dict[TrajectoryKey, KvClaim] = {}
        self._judged: dict[TrajectoryKey, None] = {}

    def judge(self, state: SchedulerState, now: float) -> None:
        """Lets new claims begin, ends those whose time is over, and judges some of the others."""
        self._unjudged |= self._knowledge.begin_claims(now)
        self._release_ended(state)
        claims = self._knowledge.claims
        for key, claim in [each for each, _ in zip(self._unjudged.items(), range(MOST_JUDGED), strict=False)]:
            del self._unjudged[key]
            if claims.of(key) is not claim:
                continue
            trajectory = _open_trajectory(state, key)
            if trajectory is None:
                claims.release(key)
            elif call := _longest_call(trajectory, self._estimates):
                self._judged[key] = None
                self._judge_by(state, key, claim, call, now)
            elif not trajectory.open_actions:
                self._unjudged[key] = claim

    def _release_ended(self, state: SchedulerState) -> None:
        """Releases claims of trajectories that ended after their claim was judged; a few a round, in turns."""
        claims = self._knowledge.claims
        for key in [each for each, _ in zip(self._judged, range(MOST_JUDGED), strict=False)]:
            del self._judged[key]
            if claims.of(key) is None:
                continue
            if _open_trajectory(state, key) is None:
                claims.release(key)
            else:
                self._judged[key] = None

    def _judge_by(self, state: SchedulerState, key: TrajectoryKey, claim: KvClaim, call: Action, now: float) -> None:
        expected = self._estimates.of_request(call.request)
        service = _engine_of(state, claim)
        if expected is None or service is None:
            return
        even_s = self._knowledge.even_s(str(claim.engine), service)
        # Nobody knows how long it will wait. As long again as it has waited is a fair guess.
        queue_s = now - call.queued_since if call.state is ActionState.QUEUED else 0.0
        keep_s = keep_for_s(expected, queue_s, even_s, call.request.timeouts.start_to_close)
        if keep_s > 0.0:
            self._knowledge.claims.keep(key, claim._replace(ends_at=now + keep_s))
        else:
            self._knowledge.claims.release(key)


def _open_trajectory(state: SchedulerState, key: TrajectoryKey) -> Trajectory | None:
    job = state.jobs.get(key[0])
    return job.trajectories.get(key[1]) if job is not None else None


def _longest_call(trajectory: Trajectory, estimates: Estimates) -> Action | None:
    """The open action that its next generation is expected to wait for; None where it has none, or generates."""
    actions = trajectory.open_actions.values()
    if any(action.request.kind is ActionKind.GENERATE for action in actions):
        return None
    return max(actions, key=lambda action: estimates.duration(action.request), default=None)


def _engine_of(state: SchedulerState, claim: KvClaim) -> Service | None:
    manager = state.managers.get(str(claim.engine))
    services = manager.services.values() if manager is not None else ()
    return next((each for each in services if each.description.kv_tokens), None)
