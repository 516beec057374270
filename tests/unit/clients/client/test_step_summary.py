"""What a trainer logs of a step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from callsheet.client import (
    ActionKind,
    Cancelled,
    CommandResult,
    Cost,
    Failed,
    FailureKind,
    GenerateResult,
    PolicyVersionSpan,
    Succeeded,
    SyncClient,
    Timeline,
    Usage,
)
from callsheet.client.step_summary import MAX_JOBS, EndedAction, StepTallies, ended_by_message, ended_by_outcome
from callsheet.client.testing import FakeClient
from callsheet.v1 import common_pb2, outcome_pb2


def _generation(*spans: tuple[int, int], queue_s: float = 0.0, execution_s: float = 1.0) -> Succeeded[GenerateResult]:
    placed, begin = [], 0
    for version, count in spans:
        placed.append(PolicyVersionSpan(version, begin, begin + count))
        begin += count
    result = GenerateResult(tuple(range(begin)), policy_versions=tuple(placed))
    return Succeeded(result, timeline=Timeline(queue_s=queue_s, execution_s=execution_s, overhead_s=0.25), attempts=1)


async def test_a_step_tells_where_time_went_and_what_failed_and_the_next_begins_anew() -> None:
    fake = FakeClient()
    fake.on_generate(lambda _: _generation((0, 4), queue_s=0.5))
    timeline = Timeline(queue_s=1.0, execution_s=2.0, waited_s={"cores": 4.0, "newer": 0.5})
    fake.on_env_step(lambda _: Failed(FailureKind.ENV, timeline=timeline, attempts=2))
    async with fake, await fake.open_job("j") as job:
        await job.generate([1])
        async with job.trajectory("t") as trajectory:
            await trajectory.env_step("x")
        first, second = job.step_summary(), job.step_summary()
    assert (first["time_s/generation"], first["time_s/environment"], first["time_s/reward"]) == (1.0, 2.0, 0.0)
    assert (first["time_s/waiting"], first["time_s/queue"], first["time_s/overhead"]) == (6.0, 1.5, 0.25)
    assert (first["time_s/waiting_cores"], first["time_s/waiting_image"]) == (4.0, 0.0)
    assert first["time_s/waiting_other"] == 0.5
    assert (first["actions/generate"], first["actions/env_step"], first["ended/failed"]) == (1, 1, 1)
    assert (first["failures/env"], first["failures/infra"], first["retried"], first["tokens/generated"]) == (1, 0, 1, 4)
    assert first.keys() == second.keys()
    assert not any(value for name, value in second.items() if name != "wall_s")
    assert all(isinstance(value, int | float) for value in first.values())


async def test_a_step_tells_what_it_cost_with_repeats_and_in_money() -> None:
    fake = FakeClient()
    search = Cost({"cpu": 2.0}, {"cpu": 1.5, "calls:search": 3.0})
    fake.on_tool_call(lambda _: Failed(FailureKind.ENV, usage=Usage(cost=search), attempts=2))
    prompt = Cost({"gpu": 4.0}, {"tokens_in": 10.0, "tokens_cached": 90.0, "tokens_out": 5.0})
    fake.on_generate(lambda _: replace(_generation((0, 5)), usage=Usage(cost=prompt)))
    async with fake, await fake.open_job("j") as job:
        fake.steps.prices = {"gpu": 1.0, "tokens_out": 0.5, "calls": 0.25, "calls:search": 0.5}
        await job.tool_call("search", "find")
        await job.generate([1])
        summary, empty = job.step_summary(), job.step_summary()
    assert {name: value for name, value in summary.items() if name.startswith(("held/", "used/"))} == {
        "held/cpu": 2.0,
        "held/memory": 0,
        "held/gpu": 4.0,
        "used/cpu": 1.5,
        "used/memory": 0,
        "used/tokens_in": 10.0,
        "used/tokens_cached": 90.0,
        "used/tokens_out": 5.0,
        "used/calls": 3.0,
    }
    assert (summary["money"], empty["money"]) == (4.0 + 2.5 + 1.5, 0.0)
    message = outcome_pb2.Outcome(usage=outcome_pb2.Usage(cost=common_pb2.Cost(held={"cpu": 2.0})))
    assert ended_by_message(ActionKind.ENV_STEP, message).cost == Cost({"cpu": 2.0})


@pytest.mark.parametrize(
    ("cost", "paid"),
    [
        (Cost({"cpu": 2.0}, {"cpu": 50.0}), 2.0),
        (Cost({}, {"cpu": 50.0, "memory": 3.0}), 0.0),
        (Cost({}, {"tokens_in": 3.0, "tokens_cached": 100.0}), 6.0),
        (Cost({}, {"calls:a": 1.0, "calls:b": 1.0}), 7.0 + 0.5),
        (Cost({"gpu": 1e6}, {"novelties": 5.0}), 0.0),
    ],
)
def test_time_is_paid_as_it_was_held_and_all_else_as_it_was_used(cost: Cost, paid: float) -> None:
    prices = {"cpu": 1.0, "memory": 9.0, "tokens_in": 2.0, "calls:a": 7.0, "calls": 0.5}
    assert cost.money(prices) == paid
    assert cost.money({}) == 0.0
    twice = Cost({name: 2 * each for name, each in cost.held.items()}, {n: 2 * each for n, each in cost.used.items()})
    assert twice.money(prices) == 2 * paid, "the money of a sum is the sum of the money"


async def test_staleness_is_counted_by_token_from_the_newest_version_known() -> None:
    fake = FakeClient()
    outcomes = iter([_generation((1, 6)), _generation((2, 1), (3, 1))])
    fake.on_generate(lambda _: next(outcomes))
    async with fake, await fake.open_job("j") as job:
        await job.publish(2)
        await job.generate([1])
        await job.generate([1])
        summary = job.step_summary()
        assert job.step_summary()["staleness/policy_version"] == 3
    assert summary["staleness/max"] == 1
    assert summary["staleness/mean"] == (6 * 1 + 1 * 1) / 8
    assert (summary["staleness/stale_tokens"], summary["staleness/mixed_generations"]) == (7, 1)


async def test_a_job_that_is_opened_anew_knows_nothing_of_the_former_ones_versions() -> None:
    fake = FakeClient()
    fake.on_generate(lambda _: _generation((1, 2)))
    async with fake:
        async with await fake.open_job("j") as job:
            await job.publish(20)
            await job.generate([1])
        async with await fake.open_job("j") as job:
            await job.publish(1)
            await job.generate([1])
            assert (await fake.open_job("j")).job_id == "j", "who attaches to it begins nothing anew"
            summary = job.step_summary()
    assert (summary["staleness/policy_version"], summary["staleness/max"]) == (1, 0)
    assert summary["tokens/generated"] == 2


async def test_a_cancelled_action_counts_with_what_it_came_to() -> None:
    partial = _generation((0, 3)).value
    tallies = StepTallies()
    tallies.ended("j", ended_by_outcome(ActionKind.GENERATE, Cancelled("late", partial)))
    summary = tallies.take("j")
    assert (summary["ended/cancelled"], summary["tokens/generated"]) == (1, 3)


@pytest.mark.parametrize("end", ["succeeded", "failed", "cancelled", "expired"])
def test_the_contract_s_outcomes_count_as_the_client_s(end: str) -> None:
    message = outcome_pb2.Outcome(attempts=1, timeline=outcome_pb2.Timeline(queue_s=0.5, execution_s=1.5))
    getattr(message, end).SetInParent()
    spans = (2, 4) if end != "expired" else ()
    if end == "failed":
        message.failed.kind = outcome_pb2.FAILURE_KIND_INFRA
    if spans:
        result = message.succeeded if end == "succeeded" else getattr(message, end).partial
        result.generate.policy_versions.add(version=2, begin=0, end=4)
    action = ended_by_message(ActionKind.GENERATE, message)
    failure = FailureKind.INFRA if end == "failed" else None
    told = (spans,) if spans else ()
    assert action == EndedAction(ActionKind.GENERATE, end, 0.5, 1.5, failure=failure, spans=told)


def test_what_is_kept_is_bounded() -> None:
    tallies = StepTallies()
    action = ended_by_outcome(ActionKind.GENERATE, _generation((0, 1)))
    for number in range(MAX_JOBS + 1):
        tallies.ended(f"j-{number}", action)
    assert tallies.take("j-0")["actions/generate"] == 0
    assert tallies.take(f"j-{MAX_JOBS}")["actions/generate"] == 1


def test_the_sync_facade_has_it() -> None:
    fake = FakeClient()
    fake.on_env_step(lambda _: Succeeded(CommandResult(0)))
    with SyncClient(fake) as client, client.open_job("j") as job:
        with job.trajectory("t") as trajectory:
            trajectory.env_step("x")
        assert job.step_summary()["actions/env_step"] == 1
