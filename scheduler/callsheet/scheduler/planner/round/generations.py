"""Generations for engines that tell the size of their KV caches: each goes where it costs least, one after the other.

They enter no model: each has its own prompt, and its prefix on one engine. What an engine takes follows from the
sequences and the tokens of KV that are booked there, and from what it tells of others. Where engines are short, those
go first whose prefix is on an engine with room, so that a full fleet keeps serving the trajectories it holds; the
others come after them, or before once they have waited for long. A trajectory whose own engine is full waits for it no
longer than its prefix can save.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.core.entities import Action, Manager
from callsheet.scheduler.core.model import ActionKind, Demand
from callsheet.scheduler.core.plan import Assignment
from callsheet.scheduler.core.ready import ClassKey, ReadyClass
from callsheet.scheduler.core.servability import can_ever_serve, service_of
from callsheet.scheduler.core.services import Service
from callsheet.scheduler.core.state import SchedulerState
from callsheet.scheduler.planner.engines.knowledge import EngineKnowledge
from callsheet.scheduler.planner.engines.price import EngineLoads, generation_prices
from callsheet.scheduler.planner.question.instance import Floats, Integers
from callsheet.scheduler.planner.round.estimates import Estimates

# Seconds after which nobody else's prefix matters any more, and, fitting nowhere, nobody else is let in before.
PATIENCE_S = 5.0
# Members of a class that a round looks at.
MOST_LOOKED_AT = 512
# What an engine without a bound is taken to have.
MANY = 1 << 40


class _Engines:
    """The engines that serve a class, and what is planned for them; arrays have shape (engines,)."""

    def __init__(self, hosts: Sequence[tuple[Manager, Service]], knowledge: EngineKnowledge) -> None:
        self.hosts = hosts
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

    @property
    def full(self) -> bool:
        """Whether none takes another sequence."""
        return not bool((self._free_slots > 0).any())

    def with_room(self, kv_tokens: int) -> Integers:
        """Indexes of those that could take a sequence now; an idle one takes whatever there is."""
        return np.flatnonzero((self._free_slots > 0) & ((self._free_kv >= kv_tokens) | self._idle))

    def prices(self, prompt_tokens: int, output_tokens: float, cached: Mapping[int, int]) -> Floats:
        """What a generation costs on each, with so many tokens of its prompt cached on some."""
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
        self._idle[index] = False


class _Turn(NamedTuple):
    """Whose turn it is: by priority, then those at home or late, then by what their job holds for its share."""

    priority: int
    later: bool
    held: float
    arrival: int
    ready: ReadyClass
    members: deque[Action]


def routed_classes(state: SchedulerState, classes: Sequence[ReadyClass]) -> list[ReadyClass]:
    """Those of some ready classes that are generations for engines that tell their size."""
    generates = [ready for ready in classes if ready.key.kind is ActionKind.GENERATE and ready.count]
    if not generates:
        return []
    services = [service.description for manager in state.managers.values() for service in manager.services.values()]
    engines = [each for each in services if each.kv_tokens]
    return [ready for ready in generates if any(each.serves(ready.key.kind, ready.key.service) for each in engines)]


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

    def route(self, classes: Sequence[ReadyClass], most: int) -> Iterator[tuple[Action, Assignment]]:
        """Routes up to `most` generations of some classes."""
        turns = [turn for ready in classes for turn in self._turns(ready)]
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
            late = self._now - action.queued_since > PATIENCE_S
            (first if late or self._home(engines, action) is not None else later).append(action)
        priority, held = int(ready.key.priority), self._held(ready)
        for members in (first, later):
            if members:
                yield _Turn(priority, members is later, held, members[0].arrival, ready, members)

    def _held(self, ready: ReadyClass) -> float:
        """Generations that a class's job has running, for its share."""
        job = self._state.jobs.get(ready.key.job)
        share = job.request.weight if job is not None else 1.0
        return self._generating.get(ready.key.job, 0) / share

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
            known = self._engines[alike] = _Engines(hosts, self._knowledge)
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
        """Where an action goes now, if anywhere; and whether those of its class that come after it may be looked at."""
        engines, request = self._engines_of(key), action.request
        size = request.generation
        if size is None:
            return None, True
        kv_tokens = self._knowledge.lengths.room(request)
        room = engines.with_room(kv_tokens)
        if not len(room):
            return None, not engines.full and self._now - action.queued_since <= PATIENCE_S
        home = self._home(engines, action)
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
        engines.take(best, kv_tokens)
        prediction = self._estimates.of_grant(request, units)
        return Assignment(action.key, manager.manager_id, units, prediction, kv_tokens), True

    def _look_again(self, at: float) -> None:
        self.again_at = at if self.again_at is None else min(self.again_at, at)
