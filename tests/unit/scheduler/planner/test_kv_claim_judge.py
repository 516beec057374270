"""Which acting trajectories keep their places in a KV cache, as rounds go by."""

from __future__ import annotations

from callsheet.scheduler.core.words.model import ActionKind
from callsheet.scheduler.core.words.registration import ServiceDescription

from tests.support.core_generations import Rollouts, engine
from tests.support.core_requests import JOB, action_request


def test_a_claim_that_was_judged_ends_with_its_trajectory() -> None:
    rollouts = Rollouts(a=engine(kv_tokens=1_000_000_000))
    world = rollouts.world
    world.manager("tools", ServiceDescription("api", frozenset({ActionKind.TOOL_CALL}), 4, {}))
    world.trajectory("t")
    rollouts.turn("first", "t", 60_000, "a")
    world.submit(action_request("call", ActionKind.TOOL_CALL, "t"))

    def claimed_in_a_round(name: str) -> bool:
        rollouts.ask(name, 100)
        world.plan()
        return rollouts.knowledge.claims.of((JOB, "t")) is not None

    assert [claimed_in_a_round(name) for name in ("one", "two")] == [True, True]
    world.close_trajectory("t")
    assert not claimed_in_a_round("three")
