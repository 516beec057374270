"""Who is trained on under each staleness policy, by length: the real core in virtual time."""

from __future__ import annotations

import math

import pytest
from callsheet.scheduler.core.words.staleness import StalenessPolicy

from tests.soak.staleness_world import EACH_QUARTER, MINUTE_S, StalenessWorld, Trainer
from tests.support.measurements import Measured

SEED = 7
WITHIN = 4
# Shares of a length that are trained on: what paces drops nothing, and other bounds leave out the longest.
NEARLY_ALL = 0.99
HARDLY_ANY = 0.05
FIXED = Trainer()


# By day one that drops nothing, and one with both bounds.
@pytest.mark.parametrize(
    ("policy", "worst", "trainer"),
    [
        pytest.param(StalenessPolicy(), math.inf, FIXED, id="none"),
        pytest.param(StalenessPolicy(admit_within=WITHIN), WITHIN, FIXED, id="admit", marks=pytest.mark.nightly),
        pytest.param(
            StalenessPolicy(admit_within=WITHIN),
            WITHIN,
            EACH_QUARTER,
            id="admit, each quarter",
            marks=pytest.mark.nightly,
        ),
        pytest.param(StalenessPolicy(select_within=WITHIN), WITHIN, FIXED, id="select", marks=pytest.mark.nightly),
        # It looks when a version is published, and not at the buffer.
        pytest.param(StalenessPolicy(evict_beyond=WITHIN), WITHIN + 1, FIXED, id="evict", marks=pytest.mark.nightly),
        pytest.param(StalenessPolicy(select_within=WITHIN, evict_beyond=WITHIN), WITHIN, FIXED, id="evict and select"),
    ],
)
def test_who_is_trained_on_by_length(
    policy: StalenessPolicy, worst: float, trainer: Trainer, nightly: bool, measured: Measured
) -> None:
    hours = 24.0 if nightly else 3.0
    world = StalenessWorld(policy, SEED, trainer)
    world.run(hours)
    buffer = world.job.buffer
    shares = buffer.lengths.shares()
    fates = ", ".join(f"{buffer.lengths.total(fate):,} {fate}" for fate in buffer.lengths.counts)
    trained = ", ".join(f"{each.trained:.0%} to {each.up_to_s / MINUTE_S:.0f} min" for each in shares)
    waits = world.waited_s / (hours * 60 * MINUTE_S)
    measured(
        f"{fates}, {world.version} versions, staleness up to {max(buffer.staleness)}, trainer waits {waits:.0%}, "
        f"trained on {trained}"
    )
    assert max(buffer.staleness) <= worst
    if policy.select_within is None and policy.evict_beyond is None:
        assert min(each.trained for each in shares) >= NEARLY_ALL
    else:
        assert shares[-1].trained <= HARDLY_ANY
