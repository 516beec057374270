"""Generations for engines that tell the size of their KV caches: each goes where it costs least, one after the other.

They enter no model: each has its own prompt, and its prefix on one engine. What an engine takes follows from the
sequences and the tokens of KV that are booked there, and from what it tells of others. Where engines are short, those
go first whose prefix is on an engine with room, so that a full fleet keeps serving the trajectories it holds; the
others come after them, or before once they have waited for long. A trajectory whose own engine is full waits for it no
longer than its prefix can save.

Trajectories whose tool calls run keep their places (`engines/claims.py`). A generation without a place waits until
there is room beside these, and beside what those that are there will grow by. One that has waited for long keeps the
engine with most room for itself. An engine that stands idle takes one in spite of places, once it has stood idle for as
long as computing the KV that is lost would take.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.core.state.entities import Action, Manager
from callsheet.scheduler.core.state.ready import ClassKey, ReadyClass
from callsheet.scheduler.core.state.scheduler_state import SchedulerState
from callsheet.scheduler.core.state.services import Service
from callsheet.scheduler.core.words.model import ActionKind, Demand, TrajectoryKey
from callsheet.scheduler.core.words.plan import Assignment
from callsheet.scheduler.core.words.registration import ServiceDescription
from callsheet.scheduler.core.work.servability import can_ever_serve, service_of
from callsheet.scheduler.planner.engines.claims import KvClaim, idle_for_s
from callsheet.scheduler.planner.engines.generation_prices import EngineLoads, generation_prices
from callsheet.scheduler.planner.engines.knowledge import EngineKnowledge
from callsheet.scheduler.planner.question.instance import Floats, Integers
from callsheet.scheduler.planner.round.estimates import Estimates

# Seconds after which nobody else's prefix matters any more, and, fitting nowhere, nobody else is let in before.
PATIENCE_S = 5.0
# Members of a class that a round looks at.
MOST_LOOKED_AT = 512
# Engines that a round keeps at most for generations that have waited for long.
MOST_KEPT = 16
NOWHERE = np.zeros(0, np.int64)
# What an engine without a bound is taken to have.
MANY = 1 << 40


class _Engines:
    """The engines that serve a class, and what is planned for them; arrays have shape (engines,)."""

    def __init__(self, hosts: Sequence[tuple[Manager, Service]], knowledge: EngineKnowledge, now: float) -> None:
        self.hosts = hosts
        self._now = now
        self.index = {manager.manager_id: index for index, (manager, _) in enumerate(hosts)}
        rates = [knowledge.rates(manager.manager_id, service.description.name) for manager, service in hosts]
        services = [service for _, service in hosts]
        self._prefill, self._step_s, self._step_per_sequence_s = np.array(rates, np.float64).reshape(-1, 3).T
        self._sequences = np.array([each.busy + each.others_sequences for each in services], np.int64)
        self._max_batch = np.array([each.description.slots or MANY for each in services], np.int64)
        self._free_slots = self._max_batch - self._sequences
        free = [each.free_kv_tokens for each in services]
        self._free_kv = np.array([MANY if tokens is None else tokens for tokens in free], np.int64)
        self._idle = np.array([not each.busy for each in services], np.bool_)
        self._kept = np.zeros(len(hosts), np.bool_)
        self._kept_count = 0
        self._largest_room: int | None = None
        self._claims = knowledge.claims
        since = [
            self._claims.idle_since(m.manager_id, now) if idle else math.inf
            for (m, _), idle in zip(hosts, self._idle.tolist(), strict=True)
        ]
        self._idle_since = np.array(since, np.float64)
        claimed = [self._claims.tokens_on(manager.manager_id) for manager, _ in hosts]
        self._claimed = np.array(claimed, np.int64)
        rooms = [0 if each.free_kv_tokens is None else knowledge.headroom(m.manager_id, each) for m, each in hosts]
        self._headroom = np.array(rooms, np.int64)

    @property
    def full(self) -> bool:
        """Returns whether no engine takes another sequence."""
        return not bool((self._free_slots > 0).any())

    def with_room(self, kv_tokens: int, waits_since: float, own: KvClaim | None = None) -> Integers:
        """Indexes of those that could take a sequence now; one that was idle for long enough takes whatever there is.

        Args:
            kv_tokens: What it comes to hold.
            waits_since: When it was queued.
            own: Its trajectory's place on one of them.
        """
        unclaimed = self._free_kv - self._claimed
        fits = (unclaimed >= kv_tokens + self._headroom) & ~self._kept
        if own is not None:
            home = self.index[str(own.engine)]
            fits[home] = unclaimed[home] + own.tokens >= kv_tokens
        fits |= ~self._kept & (self._idle_long_at(kv_tokens, waits_since) <= self._now)
        return np.flatnonzero((self._free_slots > 0) & fits)

    def idle_long_at(self, kv_tokens: int, waits_since: float) -> float:
        """When one of those that are idle now takes a sequence in spite of all claims; infinite if none is idle."""
        open_ = self._idle & (self._free_slots > 0) & ~self._kept
        return float(self._idle_long_at(kv_tokens, waits_since)[open_].min()) if open_.any() else math.inf

    def _idle_long_at(self, kv_tokens: int, waits_since: float) -> Floats:
        idle_s = idle_for_s(kv_tokens, self._free_kv - self._claimed, self._claimed, self._prefill)
        at: Floats = np.maximum(self._idle_since, waits_since) + idle_s
        return at

    @property
    def may_keep(self) -> bool:
        """Returns whether another engine may be kept for an action that waits."""
        return self._kept_count < MOST_KEPT

    def too_large(self, kv_tokens: int) -> bool:
        """Returns whether a sequence without a place fits nowhere; quickly, because most of a long queue do not fit."""
        if self._largest_room is None:
            open_ = (self._free_slots > 0) & ~self._kept
            unclaimed = self._free_kv - self._claimed
            worth = np.where(self._idle, self._now - self._idle_since, 0.0) * self._prefill
            when_idle = np.where(worth >= self._claimed, MANY, unclaimed + worth)
            rooms = np.where(self._idle, when_idle, unclaimed - self._headroom)[open_]
            self._largest_room = int(rooms.max()) if len(rooms) else 0
        return kv_tokens > self._largest_room

    def most_room(self) -> int | None:
        """The engine with the most room beside all claims; None if all with free slots are kept for somebody."""
        left = np.flatnonzero((self._free_slots > 0) & ~self._kept)
        return int(left[int(np.argmax((self._free_kv - self._claimed)[left]))]) if len(left) else None

    def keep(self, index: int) -> None:
        """Keeps an engine for a waiting sequence: of the other sequences only those with a claim there may go there."""
        if self._kept_count < MOST_KEPT:
            self._kept[index] = True
            self._kept_count += 1
            self._largest_room = None

    def make_way(self, index: int, kv_tokens: int) -> None:
        """Takes claimed places of any trajectories, for a sequence that an engine runs in spite of all claims."""
        engine = self.hosts[index][0].manager_id
        self._claims.give_way(engine, kv_tokens - int(self._free_kv[index] - self._claimed[index]))
        self._claimed[index] = self._claims.tokens_on(engine)

    def take_places(
        self, index: int, kv_tokens: int, may: Callable[[Hashable, KvClaim], bool], *, headroom: bool = False
    ) -> bool:
        """Takes places of trajectories that may lose theirs, until a sequence fits on an engine; returns whether it
        fits.

        Args:
            index: The engine's index.
            kv_tokens: Tokens that the sequence comes to hold.
            may: Returns whether a trajectory may lose its place.
            headroom: Leave headroom as well.
        """
        engine = self.hosts[index][0].manager_id
        needed = kv_tokens + (int(self._headroom[index]) if headroom else 0)
        lacking = needed - int(self._free_kv[index] - self._claimed[index])
        enough = lacking <= 0 or self._claims.take(engine, lacking, may)
        self._claimed[index] = self._claims.tokens_on(engine)
        self._largest_room = None
        return enough

    def give_up(self, trajectory: TrajectoryKey) -> KvClaim | None:
        """Ends a trajectory's claim, if it has one on one of these."""
        claim = self._claims.release(trajectory)
        if claim is not None:
            self._claimed[self.index[str(claim.engine)]] -= claim.tokens
            self._largest_room = None
        return claim

    def prices(self, prompt_tokens: int, output_tokens: float, cached: Mapping[int, int]) -> Floats:
        """Returns the cost of a generation on each engine, if some of them have so many tokens of its prompt cached."""
        found = np.zeros(len(self.hosts), np.int64)
        for index, tokens in cached.items():
            found[index] = tokens
        loads = EngineLoads(
            self._prefill, self._step_s, self._step_per_sequence_s, self._sequences, self._max_batch, found
        )
        return generation_prices(prompt_tokens, output_tokens, loads)

    def prefill_s(self, index: int, tokens: int) -> float:
        """Seconds that an engine needs for so many tokens of a prompt."""
        return tokens / float(self._prefill[index])

    def take(self, index: int, kv_tokens: int) -> None:
        """Books a sequence."""
        self._sequences[index] += 1
        self._free_slots[index] -= 1
        self._free_kv[index] -= kv_tokens
        self._idle[index], self._idle_since[index] = False, math.inf
        self._claims.began(self.hosts[index][0].manager_id)
        self._largest_room = None


class _Turn(NamedTuple):
    """Order of turns: by priority, then those at home or late, then by what their job holds for its share."""

    priority: int
    later: bool
    held: float
    arrival: int
    ready: ReadyClass
    members: deque[Action]


def _why(engines: _Engines, prices: Floats, room: Integers, best: int, home: tuple[int, int] | None) -> str:
    """The price on the engine that was chosen, what is cached there, and the engine with room that comes next."""
    others = room[room != best]
    told = f"its price there is {prices[best]:.3g} s"
    if home is not None and home[0] == best:
        told += f" with {home[1]} tokens of its prompt cached"
    if not len(others):
        return f"{told}; no other engine has room"
    following = int(others[int(np.argmin(prices[others]))])
    return f"{told}; next is {engines.hosts[following][0].manager_id} at {prices[following]:.3g} s"


class SizedEngines:
    """The engines that tell the size of their KV caches, looked for once in a fleet."""

    def __init__(self) -> None:
        """Starts with none."""
        self._version = -1
        self._engines: list[ServiceDescription] = []

    def routed(self, state: SchedulerState, classes: Sequence[ReadyClass]) -> list[ReadyClass]:
        """Those of some ready classes that are generations for such engines."""
        if self._version != state.fleet_version:
            self._version = state.fleet_version
            services = (each.description for manager in state.managers.values() for each in manager.services.values())
            alike = {(each.name, each.kinds): each for each in services if each.kv_tokens}
            self._engines = list(alike.values())
        if not self._engines:
            return []
        generates = [ready for ready in classes if ready.key.kind is ActionKind.GENERATE and ready.count]
        return [each for each in generates if any(one.serves(each.key.kind, each.key.service) for one in self._engines)]


class GenerationRound:
    """Scratch books of one round.

    Attributes:
        again_at: When a trajectory stops waiting for its prefix, at the soonest; None if none waits for one.
    """

    def __init__(
        self,
        state: SchedulerState,
        estimates: Estimates,
        knowledge: EngineKnowledge,
        generating: Mapping[str, int],
        now: float,
    ) -> None:
        """Starts from the state of now.

        Args:
            state: The core.
            estimates: What managers are told to expect.
            knowledge: What is known of engines.
            generating: Generations that run, by job.
            now: Seconds since the epoch.
        """
        self.again_at: float | None = None
        self._state = state
        self._estimates = estimates
        self._knowledge = knowledge
        self._generating = dict(generating)
        self._now = now
        self._engines: dict[tuple[str, Demand], _Engines] = {}
        self._lowest_class = max((job.request.priority_class for job in state.jobs.values()), default=0)

    def route(self, classes: Sequence[ReadyClass], most: int) -> Iterator[tuple[Action, Assignment]]:
        """Routes up to `most` generations of some classes."""
        turns = [turn for ready in classes for turn in self._turns(ready)]
        next_end = self._knowledge.claims.next_end()
        if turns and next_end is not None:
            self._look_again(next_end)
        heapq.heapify(turns)
        routed = 0
        while turns and routed < most:
            turn = heapq.heappop(turns)
            if self._held(turn.ready) > turn.held:
                # Its job has got more since.
                heapq.heappush(turns, turn._replace(held=self._held(turn.ready)))
                continue
            action = turn.members.popleft()
            assignment, goes_on = self._place(turn.ready.key, action)
            if assignment is not None:
                routed += 1
                job = action.key.job_id
                self._generating[job] = self._generating.get(job, 0) + 1
                yield action, assignment
            if turn.members and goes_on:
                heapq.heappush(turns, turn._replace(arrival=turn.members[0].arrival, held=self._held(turn.ready)))

    def _turns(self, ready: ReadyClass) -> Iterator[_Turn]:
        """A class's members, in the order in which they come to their turns: those at home or late, and the others."""
        engines = self._engines_of(ready.key)
        if not engines.hosts or engines.full:
            return
        first: deque[Action] = deque()
        later: deque[Action] = deque()
        for action in islice(ready, MOST_LOOKED_AT):
            (first if self._is_late(action) or self._home(engines, action) is not None else later).append(action)
        priority, held = int(ready.key.priority), self._held(ready)
        for members in (first, later):
            if members:
                yield _Turn(priority, members is later, held, members[0].arrival, ready, members)

    def _held(self, ready: ReadyClass) -> float:
        """Generations that a class's job has running, for its share."""
        return self._share_of(ready.key.job)

    def _share_of(self, job_id: str) -> float:
        job = self._state.jobs.get(job_id)
        share = job.request.weight if job is not None else 1.0
        return self._generating.get(job_id, 0) / share

    def _engines_of(self, key: ClassKey) -> _Engines:
        """Classes that ask for the same service share its engines."""
        alike = (key.service, key.demand)
        known = self._engines.get(alike)
        if known is None:
            hosts = [
                (manager, service)
                for manager in self._state.managers.values()
                if manager.accepting and can_ever_serve(manager, key.kind, key.service, key.demand)
                if (service := service_of(manager, key.kind, key.service)) is not None
                and not (service.no_room or service.weights.gated)
            ]
            known = self._engines[alike] = _Engines(hosts, self._knowledge, self._now)
        return known

    def _home(self, engines: _Engines, action: Action) -> tuple[int, int] | None:
        """(engine, cached tokens) of an action whose prefix is on one of the engines."""
        request = action.request
        prefix = self._knowledge.prefixes.of((request.key.job_id, request.trajectory_id))
        index = engines.index.get(prefix.engine) if prefix is not None else None
        if prefix is None or index is None:
            return None
        cached = self._knowledge.cached_tokens(request, prefix.engine, engines.hosts[index][1])
        return (index, cached) if cached > 0 else None

    def _place(self, key: ClassKey, action: Action) -> tuple[Assignment | None, bool]:
        """Returns an action's assignment, None if it must wait, and whether later actions of its class may be tried."""
        engines, request = self._engines_of(key), action.request
        size = request.generation
        if size is None:
            return None, True
        if engines.full:
            return None, False
        kv_tokens = self._knowledge.lengths.room(request)
        home = self._home(engines, action)
        room = self._room(engines, action, kv_tokens, home)
        if not len(room):
            return None, True
        if home is not None and home[0] not in room:
            saved_s = min(engines.prefill_s(*home), PATIENCE_S)
            if self._now < action.queued_since + saved_s:
                self._look_again(action.queued_since + saved_s)
                return None, True
        output_tokens = self._knowledge.lengths.expected(request)
        prices = engines.prices(size.prompt_tokens, output_tokens, dict([home]) if home is not None else {})
        best = int(room[int(np.argmin(prices[room]))])
        manager, service = engines.hosts[best]
        units = key.demand.minimum()
        if not manager.node.fits(service.booked(units)):
            return None, True
        if action.trajectory is not None:
            engines.give_up(action.trajectory.key)
        engines.make_way(best, kv_tokens)
        engines.take(best, kv_tokens)
        why = _why(engines, prices, room, best, home)
        prediction = self._estimates.of_grant(request, units)
        return Assignment(action.key, manager.manager_id, units, prediction, kv_tokens, why), True

    def _room(self, engines: _Engines, action: Action, kv_tokens: int, home: tuple[int, int] | None) -> Integers:
        """Engines with room for a generation, once its trajectory has grown out of its place or waited for long."""
        trajectory = action.trajectory
        own = self._knowledge.claims.of(trajectory.key) if trajectory is not None else None
        if (
            trajectory is not None
            and own is not None
            and (home is None or home[0] != engines.index.get(str(own.engine)))
        ):
            # Of old weights, or of an engine that does not serve it any more.
            self._knowledge.claims.release(trajectory.key)
            own = None
        late = self._is_late(action)
        higher = action.job.request.priority_class < self._lowest_class
        takes = higher or (late and len(self._state.jobs) > 1)
        idle_long_at = engines.idle_long_at(kv_tokens, action.queued_since)
        if self._now < idle_long_at < math.inf:
            self._look_again(idle_long_at)
        if own is None and not takes and not (late and engines.may_keep) and engines.too_large(kv_tokens):
            return NOWHERE
        room = engines.with_room(kv_tokens, action.queued_since, own)
        if trajectory is not None and own is not None and home is not None and home[0] not in room:
            engines.give_up(trajectory.key)
            if engines.take_places(home[0], kv_tokens, self._may_take(action, own)):
                return np.array([home[0]], np.int64)
        index = engines.most_room() if not len(room) else None
        if index is None:
            return room
        if takes and engines.take_places(index, kv_tokens, self._may_take(action), headroom=not higher):
            return np.array([index], np.int64)
        if self._is_late(action):
            engines.keep(index)
        return room

    def _may_take(self, action: Action, own: KvClaim | None = None) -> Callable[[Hashable, KvClaim], bool]:
        """Returns a test of the places that a generation may take, with a too small place of its own, or without one.

        It may take places of lower classes, and with its own those of trajectories that began later. A generation that
        has waited for long takes those of jobs with more generations for their share.
        """
        job, late = action.job, self._is_late(action)

        def may(trajectory: Hashable, claim: KvClaim) -> bool:
            other = self._state.jobs.get(trajectory[0]) if isinstance(trajectory, tuple) else None
            if other is None or other.request.priority_class > job.request.priority_class:
                return True
            if other.request.priority_class < job.request.priority_class:
                return False
            if own is not None:
                return claim.began_at > own.began_at
            return late and self._share_of(other.request.job_id) > self._share_of(job.request.job_id)

        return may

    def _is_late(self, action: Action) -> bool:
        return self._now - action.queued_since > PATIENCE_S

    def _look_again(self, at: float) -> None:
        self.again_at = at if self.again_at is None else min(self.again_at, at)
