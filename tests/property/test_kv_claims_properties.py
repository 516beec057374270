"""The books of claims agree with each other, whatever happens; keeping costs at most twice what it can save."""

from __future__ import annotations

import math

from callsheet.scheduler.planner.engines.claims import KvClaim, KvClaims, keep_for_s
from callsheet.scheduler.planner.predictors import Prediction
from hypothesis import given
from hypothesis import strategies as st

TRAJECTORIES = st.sampled_from("tuvwx")
ENGINES = st.sampled_from("ab")
TOKENS = st.integers(0, 100)
TIMES = st.floats(0.0, 100.0)
KEEP = st.tuples(st.just("keep"), TRAJECTORIES, st.builds(KvClaim, ENGINES, TOKENS, TIMES, TIMES))
STEPS = st.one_of(
    KEEP,
    st.tuples(st.just("release"), TRAJECTORIES, st.none()),
    st.tuples(st.just("expire"), TIMES, st.none()),
    st.tuples(st.just("take"), ENGINES, TOKENS),
    st.tuples(st.just("give way"), ENGINES, TOKENS),
    st.tuples(st.just("forget"), ENGINES, st.none()),
)


@given(st.lists(STEPS, max_size=40))
def test_books_agree(steps: list[tuple[str, object, object]]) -> None:
    claims, known = KvClaims(), dict[object, KvClaim]()
    for what, whom, how in steps:
        if what == "keep" and isinstance(how, KvClaim):
            claims.keep(whom, how)
            known[whom] = how
        elif what == "release":
            assert claims.release(whom) == known.pop(whom, None)
        elif what == "expire" and isinstance(whom, float):
            claims.expire(whom)
            known = {name: claim for name, claim in known.items() if claim.ends_at > whom}
        elif what == "take" and isinstance(how, int):
            free = sum(claim.tokens for claim in known.values() if claim.engine == whom)
            assert claims.take(whom, how, lambda _, claim: True) == (free >= how)
            left = {name: claim for name, claim in known.items() if claims.of(name) is claim}
            lost = [claim for name, claim in known.items() if name not in left]
            assert sum(claim.tokens for claim in lost) >= how or free < how
            kept = [claim for claim in left.values() if claim.engine == whom]
            assert all(gone.began_at >= stays.began_at for gone in lost for stays in kept)
            known = left
        elif what == "give way" and isinstance(how, int):
            held = sum(claim.tokens for claim in known.values() if claim.engine == whom)
            claims.give_way(whom, how)
            known = {name: claim for name, claim in known.items() if claims.of(name) is claim}
            left_tokens = sum(claim.tokens for claim in known.values() if claim.engine == whom)
            assert held - left_tokens >= min(how, held)
        else:
            claims.forget_engine(whom)
            known = {name: claim for name, claim in known.items() if claim.engine != whom}
        for engine in "ab":
            held = sum(claim.tokens for claim in known.values() if claim.engine == engine)
            assert claims.tokens_on(engine) == held
        assert claims.next_end() == min((claim.ends_at for claim in known.values()), default=None)
        assert len(claims) == len(known)


@given(st.floats(0.01, 1000.0), st.floats(0.05, 3.0), st.floats(0.0, 100.0), st.floats(0.1, 100.0), st.floats(0.1, 1e3))
def test_no_place_is_kept_for_more_than_twice_what_it_can_save(
    median_s: float, log_sd: float, queue_s: float, even_s: float, timeout_s: float
) -> None:
    call = Prediction(median_s, math.log(median_s), log_sd, 1.0, 0.0, 0.0, 1.0)
    assert 0.0 <= keep_for_s(call, queue_s, even_s, timeout_s) <= 2.0 * even_s
