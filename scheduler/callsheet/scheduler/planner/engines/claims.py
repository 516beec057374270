"""KV that trajectories keep on engines while their tool calls run.

A trajectory that acts holds KV and computes nothing. Were its place given to another one, the engine would drop that
KV, and compute it anew when the tool call ends. So a trajectory keeps a claim on its place, as long as that costs less
than computing anew. A generation without a claim waits until there is room beside all claims: its trajectory is paused
at its tool call.

Keeping `tokens` for t seconds takes a share `tokens / capacity` of the engine's batch out of service for t. Computing
them anew takes the whole engine out of service for `tokens / prefill_rate`. A larger batch makes an engine faster by
less than its share: a step of b sequences takes `step + b * step_per_sequence`, so that another per cent of sequences
brings `step / (step + b * step_per_sequence)` per cent of tokens. Both cost the same after
`capacity / prefill_rate / that`, whatever the size of the trajectory.

Nobody knows for certain when a tool call ends. To keep the place for just that time, and then to give it up, costs at
most twice what the best choice in hindsight does (the ski-rental problem: Karlin et al., Competitive Snoopy Caching,
1988). What is known of the call says whether to keep it at all.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable
from typing import NamedTuple

import numpy as np
from callsheet.scheduler.planner.engines.generation_prices import EngineRates
from callsheet.scheduler.planner.predictors import Prediction
from callsheet.scheduler.planner.predictors.log_normal import bounded_mean
from callsheet.scheduler.planner.question.instance import Floats, Integers

_SQRT_2 = math.sqrt(2.0)
# What trajectories that end give back meets about half of what the others grow by (docs/lab/2026-11-kv.md).
_NET_GROWTH = 0.5
# Of the cache. The formula takes the engine for busy all the time; a small one is not, and would stay half empty.
_MOST_HEADROOM = 0.1
# Of the batch's gain from another sequence. Fits of few generations come to none, and nothing would ever break even.
_LEAST_GAIN = 0.05


def break_even_s(capacity_tokens: int, rates: EngineRates, sequences: float) -> float:
    """Seconds after which keeping KV that nobody uses has cost as much as computing it anew.

    Args:
        capacity_tokens: Of the engine's KV cache.
        rates: How fast the engine is.
        sequences: Those that decode together.
    """
    decoding_s = rates.step_s + max(sequences, 1.0) * rates.step_per_sequence_s
    gain_of_more = max(rates.step_s / decoding_s, _LEAST_GAIN)
    return capacity_tokens / rates.prefill_tokens_per_s / gain_of_more


class UsualTurn(NamedTuple):
    """A turn of the trajectories on an engine, on average.

    Attributes:
        context_tokens: What a trajectory holds.
        growth_tokens: By how much that is more after the turn.
        output_tokens: What it writes.
    """

    context_tokens: float
    growth_tokens: float
    output_tokens: float

    def faded(self, seen: UsualTurn, memory: float) -> UsualTurn:
        """Returns the usual turn after another one was seen, if the former ones keep so much weight."""
        return UsualTurn(*(memory * old + (1.0 - memory) * new for old, new in zip(self, seen, strict=True)))


def headroom_tokens(capacity_tokens: int, rates: EngineRates, sequences: float, turn: UsualTurn) -> int:
    """Tokens to leave free when a trajectory without a claim is let in, as those that are there grow.

    With h tokens free the engine fills up after h / growth turns, and then a trajectory loses its place, whose context
    is computed anew later. Meanwhile h / 2 tokens are of no use on average. The sum of both is least where both are
    equal (the economic order quantity: Harris, How many parts to make at once, 1913).

    Args:
        capacity_tokens: Of the engine's KV cache.
        rates: How fast the engine is.
        sequences: Those that decode together.
        turn: What trajectories do.
    """
    decoding = max(sequences, 1.0)
    turn_s = max(turn.growth_tokens - turn.output_tokens, 0.0) / rates.prefill_tokens_per_s + turn.output_tokens * (
        rates.step_s / decoding + rates.step_per_sequence_s
    )
    price_of_room = break_even_s(capacity_tokens, rates, sequences)
    growth_per_s = max(turn.growth_tokens, 0.0) / max(turn_s, 1e-9)
    best = math.sqrt(2.0 * price_of_room * turn.context_tokens * growth_per_s)
    return int(min(_NET_GROWTH * best, _MOST_HEADROOM * capacity_tokens))


def keep_for_s(call: Prediction, queue_s: float, even_s: float, timeout_s: float = math.inf) -> float:
    """Seconds for which to keep KV while a tool call waits and runs; 0 where it is not worth while.

    Of a call of which nothing is known, a guess must not end it: it is kept until it breaks even.

    Args:
        call: What is expected of the call's execution.
        queue_s: Seconds that it is expected to wait before.
        even_s: See `break_even_s`.
        timeout_s: Execution time that ends the call.
    """
    if queue_s >= even_s:
        return 0.0
    if not call.known:
        return even_s
    latest_s = queue_s + timeout_s
    # What is kept until then is kept on where the time-out is near: no more is left than was worth it before.
    keep_s = latest_s if even_s < latest_s <= 2.0 * even_s else even_s
    longest_s = min(keep_s, latest_s) - queue_s
    z = (math.log(longest_s) - call.log_mean) / call.log_sd
    back_in_time = 1.0 if latest_s <= keep_s else 0.5 * math.erfc(-z / _SQRT_2)
    kept_s = queue_s + bounded_mean(call.log_mean, call.log_sd, longest_s)
    return keep_s if kept_s < back_in_time * even_s else 0.0


def idle_for_s(kv_tokens: int, unclaimed: Integers, claimed: Integers, prefill_tokens_per_s: Floats) -> Floats:
    """Seconds, shape (engines,), for which engines stand idle before somebody without a place takes claimed tokens.

    An idle engine loses all that it could do, and so does one that computes KV anew. To wait for as long as that would
    take costs at most twice what the best choice in hindsight does, as in `keep_for_s`.

    Args:
        kv_tokens: What that one comes to hold.
        unclaimed: Tokens that are neither booked nor claimed; below 0 where claims are more than fit.
        claimed: Tokens that are claimed.
        prefill_tokens_per_s: How fast the engine computes KV.
    """
    lost: Floats = np.clip(kv_tokens - unclaimed, 0, claimed) / prefill_tokens_per_s
    return lost


class KvClaim(NamedTuple):
    """A trajectory's place in an engine's KV cache while it acts.

    Attributes:
        engine: Whose cache.
        tokens: What it is expected to need there next.
        began_at: When the trajectory began: older ones go first.
        ends_at: When keeping it has cost as much as it can save.
    """

    engine: Hashable
    tokens: int
    began_at: float
    ends_at: float


class KvClaims:
    """All claims on all engines. Not for several threads."""

    def __init__(self) -> None:
        """Starts with none."""
        self._claims: dict[Hashable, KvClaim] = {}
        self._on: dict[Hashable, dict[Hashable, KvClaim]] = {}
        self._tokens: dict[Hashable, int] = {}
        self._ends: list[tuple[float, int, Hashable, KvClaim]] = []
        self._idle_since: dict[Hashable, float] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._claims)

    def of(self, trajectory: Hashable) -> KvClaim | None:
        """The claim of a trajectory."""
        return self._claims.get(trajectory)

    def copy(self) -> KvClaims:
        """The same claims, to try something with."""
        twin = KvClaims()
        twin._claims, twin._tokens = dict(self._claims), dict(self._tokens)
        twin._on = {engine: dict(held) for engine, held in self._on.items()}
        twin._ends, twin._number = list(self._ends), self._number
        twin._idle_since = dict(self._idle_since)
        return twin

    def tokens_on(self, engine: Hashable) -> int:
        """Tokens that are claimed on an engine."""
        return self._tokens.get(engine, 0)

    def keep(self, trajectory: Hashable, claim: KvClaim) -> None:
        """Gives a trajectory a claim, in place of any it has."""
        self.release(trajectory)
        self._claims[trajectory] = claim
        self._on.setdefault(claim.engine, {})[trajectory] = claim
        self._tokens[claim.engine] = self._tokens.get(claim.engine, 0) + claim.tokens
        self._number += 1
        heapq.heappush(self._ends, (claim.ends_at, self._number, trajectory, claim))

    def release(self, trajectory: Hashable) -> KvClaim | None:
        """Takes a trajectory's claim away; returns it if there was one."""
        claim = self._claims.pop(trajectory, None)
        if claim is None:
            return None
        held = self._on[claim.engine]
        del held[trajectory]
        self._tokens[claim.engine] -= claim.tokens
        if not held:
            del self._on[claim.engine], self._tokens[claim.engine]
        return claim

    def expire(self, now: float) -> None:
        """Releases those whose time is over."""
        while self._ends and self._ends[0][0] <= now:
            _, _, trajectory, claim = heapq.heappop(self._ends)
            if self._claims.get(trajectory) is claim:
                self.release(trajectory)

    def next_end(self) -> float | None:
        """When the next one ends; None where there are none."""
        while self._ends and self._claims.get(self._ends[0][2]) is not self._ends[0][3]:
            heapq.heappop(self._ends)
        return self._ends[0][0] if self._ends else None

    def take(self, engine: Hashable, tokens: int, may: Callable[[Hashable, KvClaim], bool]) -> bool:
        """Releases claims on an engine until so many tokens are free of them, the youngest trajectory's first.

        Args:
            engine: Whose KV is short.
            tokens: How many are lacking.
            may: Whether a trajectory may lose its claim.

        Returns:
            Whether those that may were enough; if not, none is released.
        """
        found = [(each, claim) for each, claim in self._on.get(engine, {}).items() if may(each, claim)]
        if sum(claim.tokens for _, claim in found) < tokens:
            return False
        for trajectory, claim in sorted(found, key=lambda each: -each[1].began_at):
            if tokens <= 0:
                break
            self.release(trajectory)
            tokens -= claim.tokens
        return True

    def give_way(self, engine: Hashable, tokens: int) -> None:
        """Releases claims on an engine until so many tokens are free of them, in the order in which it drops KV.

        Claims begin at the ends of generations, so the first one is of the least recently used KV.
        """
        for trajectory, claim in list(self._on.get(engine, {}).items()):
            if tokens <= 0:
                return
            self.release(trajectory)
            tokens -= claim.tokens

    def idle_since(self, engine: Hashable, now: float) -> float:
        """Since when an engine has been known to stand idle; from now on, if it was not known to."""
        return self._idle_since.setdefault(engine, now)

    def began(self, engine: Hashable) -> None:
        """An engine does not stand idle any more."""
        self._idle_since.pop(engine, None)

    def forget_engine(self, engine: Hashable) -> None:
        """Releases all claims on an engine that is gone, or whose KV is of no use any more."""
        self.began(engine)
        for trajectory in list(self._on.get(engine, ())):
            self.release(trajectory)
