from __future__ import annotations

import math
import os
import threading

import anyio
import pytest
import torch
from callsheet.managers.models.transformer import ScoringModel, initialise
from callsheet.managers.reward.scorer import Scorer
from callsheet.managers.reward.scores import ModelScore, ScoreRequest, ScorerError

from tests.support.torch_models import SMALL, prompt

pytestmark = pytest.mark.anyio
ALL_CORES = sorted(os.sched_getaffinity(0))


class ObservedModel(ScoringModel):
    """The real model; it also notes where and with what it ran, and can be held up."""

    def __init__(self) -> None:
        super().__init__(SMALL)
        initialise(self, 0)
        self.calls: list[tuple[int, set[int], int]] = []
        self.gate = threading.Event()
        self.gate.set()

    def forward(self, token_ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        self.calls.append((len(lengths), os.sched_getaffinity(0), torch.get_num_threads()))
        assert self.gate.wait(30)
        return super().forward(token_ids, lengths)


@pytest.fixture
def model() -> ObservedModel:
    return ObservedModel()


@pytest.fixture
def scorer(model: ObservedModel) -> Scorer:
    return Scorer(model)


def reference(tokens: tuple[int, ...]) -> float:
    model = ScoringModel(SMALL)
    initialise(model, 0)
    with torch.no_grad():
        return float(model(torch.tensor([tokens]), torch.tensor([len(tokens)])))


async def value_of(ticket: ScoreRequest) -> float:
    with anyio.fail_after(30):
        answer = await ticket.answer
    assert isinstance(answer, ModelScore), answer
    assert answer.cpu_s >= 0
    return answer.value


async def test_scores_equal_the_plain_model_whatever_shares_the_batch(model: ObservedModel, scorer: Scorer) -> None:
    sequences = [prompt(3 + 5 * index, index) for index in range(20)]
    tickets = [scorer.submit(tokens, ()) for tokens in sequences]
    values = [await value_of(ticket) for ticket in tickets]
    assert values == pytest.approx([reference(tokens) for tokens in sequences], abs=1e-5)
    assert len(model.calls) < len(sequences)
    assert sum(size for size, _, _ in model.calls) == len(sequences)
    assert len({round(value, 4) for value in values}) > 15


async def test_a_batch_runs_on_the_granted_cores_alone(model: ObservedModel, scorer: Scorer) -> None:
    before, core = os.sched_getaffinity(0), ALL_CORES[-1]
    await value_of(scorer.submit(prompt(9), [core]))
    assert (model.calls, os.sched_getaffinity(0)) == ([(1, {core}, 1)], before)


@pytest.mark.skipif(len(ALL_CORES) < 2, reason="needs two cores")
async def test_requests_that_arrive_together_pool_their_cores(model: ObservedModel, scorer: Scorer) -> None:
    tickets = [scorer.submit(prompt(9, core), [core]) for core in ALL_CORES[:2]]
    for ticket in tickets:
        await value_of(ticket)
    assert model.calls == [(2, set(ALL_CORES[:2]), 2)]


async def test_requests_with_cores_do_not_wait_for_others(model: ObservedModel, scorer: Scorer) -> None:
    model.gate.clear()
    held = scorer.submit(prompt(4), ())
    await _begun(model, 1)
    granted = scorer.submit(prompt(5), ALL_CORES[:1])
    await _begun(model, 2)
    model.gate.set()
    for ticket in (held, granted):
        await value_of(ticket)


async def test_what_arrives_while_the_lane_is_busy_is_the_next_batch(model: ObservedModel, scorer: Scorer) -> None:
    model.gate.clear()
    first = scorer.submit(prompt(8), ())
    await _begun(model, 1)
    later = [scorer.submit(prompt(8, seed), ()) for seed in range(5)]
    await anyio.wait_all_tasks_blocked()
    assert len(model.calls) == 1
    scorer.withdraw(later[0])
    assert later[0].answer.result() is None
    model.gate.set()
    for ticket in (first, *later[1:]):
        await value_of(ticket)
    assert [size for size, _, _ in model.calls] == [1, 4]


async def test_withdrawing_what_has_begun_changes_nothing(model: ObservedModel, scorer: Scorer) -> None:
    model.gate.clear()
    ticket = scorer.submit(prompt(8), ())
    await _begun(model, 1)
    scorer.withdraw(ticket)
    model.gate.set()
    assert await value_of(ticket) == pytest.approx(reference(prompt(8)), abs=1e-5)


async def test_a_failure_reaches_the_whole_batch_and_the_scorer_goes_on(scorer: Scorer) -> None:
    bad = [scorer.submit((999, seed), ()) for seed in range(2)]  # not checked here: torch refuses the index
    assert [getattr(await ticket.answer, "reason", "") for ticket in bad] == ["scorer_failed"] * 2
    assert math.isfinite(await value_of(scorer.submit(prompt(3), ())))


async def test_bounds() -> None:
    scorer = Scorer(ObservedModel(), max_requests=3)
    tickets = [scorer.submit(prompt(4, seed), ()) for seed in range(3)]
    with pytest.raises(ScorerError, match="3 requests") as refusal:
        scorer.submit(prompt(4), ())
    assert refusal.value.reason == "scorer_busy"
    for ticket in tickets:
        await value_of(ticket)
        assert ticket.waited_s > 0
    await value_of(scorer.submit(prompt(4), ()))


async def test_shut_withdraws_and_refuses(scorer: Scorer) -> None:
    ticket = scorer.submit(prompt(4), ())
    scorer.shut()
    assert ticket.answer.result() is None
    with pytest.raises(ScorerError) as refusal:
        scorer.submit(prompt(4), ())
    assert refusal.value.reason == "scorer_closed"
    scorer.join(1)


async def _begun(model: ObservedModel, calls: int) -> None:
    with anyio.fail_after(30):
        while len(model.calls) < calls:  # noqa: ASYNC110 - the model runs in another thread
            await anyio.sleep(0.001)
