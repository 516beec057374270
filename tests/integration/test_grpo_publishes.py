"""A trainer of one's own with small steps: each publish is served, or its `publish` says why it is not."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from statistics import fmean, pstdev

import anyio
import anyio.to_thread
import pytest
import torch
from callsheet.client import (
    Canary,
    Client,
    EngineState,
    GenerateResult,
    Job,
    LogProbsMode,
    RolloutStatus,
    Sampling,
    Tensors,
    WeightsNotProvedError,
)
from callsheet.client.words.weights import Source
from callsheet.managers.inference.torch_engine.runner import Runner
from callsheet.managers.models.transformer import LanguageModel
from safetensors.torch import save
from torch import Tensor

from tests.soak.weights_fleet import CONFIG, WeightsFleet, embedded_fleet
from tests.support.command_line import invoke
from tests.support.torch_models import full_pass_log_probs, save_weights, small_model

pytestmark = pytest.mark.anyio
GROUPS, SIBLINGS, TOKENS = 2, 4, 12
WAIT_S = 60.0
PUBLISHES = 20 if os.environ.get("CALLSHEET_NIGHTLY") == "1" else 5


@pytest.fixture
async def fleet(tmp_path: Path) -> AsyncIterator[WeightsFleet]:
    """One engine, and the job of its trainer."""
    async with embedded_fleet(tmp_path, engines=1) as running:
        yield running


async def sibling(job: Job, prompt: tuple[int, ...], seed: int) -> GenerateResult:
    """Generates with the weights of now."""
    sampling = Sampling(TOKENS, temperature=1.0, seed=seed, ignore_eos=True, log_probs_mode=LogProbsMode.RAW)
    with anyio.fail_after(WAIT_S):
        return (await job.generate(prompt, sampling=sampling)).unwrap()


def learn(
    model: LanguageModel,
    optimiser: torch.optim.Optimizer,
    groups: list[tuple[tuple[int, ...], list[GenerateResult], list[float]]],
) -> None:
    """One step of GRPO; a group whose rewards are equal teaches nothing."""
    optimiser.zero_grad()
    losses = []
    for prompt, results, rewards in groups:
        spread = pstdev(rewards) or 1.0
        for result, reward in zip(results, rewards, strict=True):
            table = torch.log_softmax(model(torch.tensor([[*prompt, *result.token_ids]]))[0], dim=-1)
            chosen = table[torch.arange(len(prompt) - 1, len(prompt) - 1 + TOKENS), torch.tensor(result.token_ids)]
            losses.append(-(reward - fmean(rewards)) / spread * chosen.mean())
    torch.stack(losses).mean().backward()  # type: ignore[no-untyped-call]
    optimiser.step()


async def train(fleet: WeightsFleet, directory: Path, publishes: int) -> list[RolloutStatus]:
    """Trains with AdamW at 1e-6; odd publishes send tensors along, even ones name a directory."""
    model = small_model(0, CONFIG).requires_grad_(True)
    # The first one of a process imports for seconds, and the engine's manager shares this event loop.
    optimiser = await anyio.to_thread.run_sync(partial(torch.optim.AdamW, model.parameters(), lr=1e-6))
    statuses = []
    for version in range(1, publishes + 1):
        groups = []
        for number in range(GROUPS):
            prompt = tuple(range(number, number + 20))
            results = [await sibling(fleet.job, prompt, 100 * version + each) for each in range(SIBLINGS)]
            assert {span.version for each in results for span in each.policy_versions} == {version - 1}
            expected = full_pass_log_probs(model, prompt, tuple(results[0].token_ids))
            assert list(results[0].log_probs) == pytest.approx(expected, abs=1e-4)
            # In the first and in each third step all rewards of all groups are equal.
            equal = version % 3 == 1 or number == 0
            groups.append((prompt, results, [1.0 if equal else float(sum(each.token_ids) % 7) for each in results]))
        await anyio.to_thread.run_sync(learn, model, optimiser, groups)
        source: Source = Tensors(save({name: each.detach().clone() for name, each in model.state_dict().items()}))
        if version % 2 == 0:
            source = directory / f"version-{version}"
            save_weights(model, CONFIG, source)
        status = await fleet.job.publish(version, source, wait_s=WAIT_S)
        assert status is not None
        statuses.append(status)
    return statuses


async def test_small_steps_and_equal_rewards_are_served_publish_for_publish(
    fleet: WeightsFleet, tmp_path: Path
) -> None:
    statuses = await train(fleet, tmp_path / "trained", PUBLISHES)
    assert [(each.version, each.done) for each in statuses] == [(each, True) for each in range(1, PUBLISHES + 1)]
    warned = [each.engines[0].warning for each in statuses]
    assert "the canary is as before: it differs by 0," in warned[0], "rewards were equal"
    assert all("the canary is as before" in each for each in warned), "steps were small"
    assert all(each.engines[0].failures == 0 for each in statuses)
    await sibling(fleet.job, (1, 2, 3), 0)
    late = await fleet.job.publish(PUBLISHES + 1, Tensors(save(dict(small_model(1, CONFIG).state_dict()))), wait_s=0)
    assert late is not None
    assert late.version == PUBLISHES + 1
    assert not late.done, "it did not wait"
    assert (await fleet.job.rollout(PUBLISHES + 1, wait_s=WAIT_S)).done
    assert await fleet.job.publish(PUBLISHES + 2) is None


Broken = Callable[[Path, pytest.MonkeyPatch], tuple[Source, Canary | None]]


def cut_short(place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Canary | None]:
    save_weights(small_model(1, CONFIG), CONFIG, place)
    file = place / "weights.pt"
    file.write_bytes(file.read_bytes()[:-100])
    return place, None


def tensors_cut_short(place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Canary | None]:
    return Tensors(save(dict(small_model(1, CONFIG).state_dict()))[:-100]), None


def misshapen(place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Canary | None]:
    state = dict(small_model(1, CONFIG).state_dict())
    return Tensors(save({**state, "head.weight": state["head.weight"][:-1].clone()})), None


def no_number(place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Canary | None]:
    state = dict(small_model(1, CONFIG).state_dict())
    state["head.weight"].view(-1)[3] = math.nan
    return Tensors(save(state)), None


def another_than_the_trainers(place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Canary | None]:
    prompt = list(range(1, 9))
    table = torch.log_softmax(small_model(1, CONFIG)(torch.tensor([prompt]))[0, -1].double(), dim=-1)
    canary = Canary(prompt, [int(table.argmax())], [float(table.max())])
    state = dict(small_model(1, CONFIG).state_dict())
    return Tensors(save({**state, "head.weight": 1.5 * state["head.weight"]})), canary


def ignored(place: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Canary | None]:
    def load_nothing(runner: Runner, state: dict[str, Tensor]) -> None:
        """The engine takes no weights and says that it did."""

    monkeypatch.setattr(Runner, "load_state", load_nothing)
    return Tensors(save(dict(small_model(1, CONFIG).state_dict()))), None


CASES: dict[str, tuple[Broken, str]] = {
    "1 cut short": (cut_short, r"weights.pt: cannot be read"),
    "2 tensors cut short": (tensors_cut_short, r"cannot be read as a file of safetensors"),
    "3 misshapen": (misshapen, r"1 tensors do not fit the model \(head.weight"),
    "4 no number": (no_number, r"1 tensors hold what is no number \(head.weight"),
    "5 not the trainer's": (another_than_the_trainers, r"the canary differs from that of the trainer's model"),
    "6 ignored": (ignored, r"tensors are not as they came"),
}


async def test_a_publish_that_no_engine_takes_raises_what_happened_and_can_be_healed(
    fleet: WeightsFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, (name, (broken, said)) in enumerate(CASES.items(), 1):
        source, canary = broken(tmp_path / name, monkeypatch)
        with anyio.fail_after(WAIT_S), pytest.raises(WeightsNotProvedError, match=said):
            await fleet.job.publish(version, source, canary=canary)
        engine = (await fleet.job.rollout()).engines[0]
        assert engine.state is EngineState.QUARANTINED, name
        assert engine.serving is (version < 5), "an engine that has its old weights for certain serves on"
    monkeypatch.undo()
    healed = await anyio.to_thread.run_sync(invoke, "heal", "engine-0", "--scheduler", fleet.address)
    assert healed.exit_code == 0, healed.output
    assert "weights initial, version 0" in healed.output
    assert [span.version for span in (await sibling(fleet.job, (1, 2, 3), 0)).policy_versions] == [0]
    assert "it was healed" in (await fleet.job.rollout()).engines[0].reason
    status = await fleet.job.publish(7, source)
    assert status is not None
    assert status.done
    unknown = await anyio.to_thread.run_sync(invoke, "heal", "nobody", "--scheduler", fleet.address)
    assert unknown.exit_code != 0
    assert "names no registered manager" in unknown.output


async def test_a_quarantine_ends_with_its_job_for_everybody(
    fleet: WeightsFleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, _ = ignored(tmp_path, monkeypatch)
    with pytest.raises(WeightsNotProvedError):
        await fleet.job.publish(1, source)
    monkeypatch.undo()
    async with Client(fleet.address) as client, await client.open_job("others") as others:
        await fleet.job.close()
        result = await sibling(others, (1, 2, 3), 0)
        assert [span.version for span in result.policy_versions] == [0]
        expected = full_pass_log_probs(small_model(0, CONFIG), (1, 2, 3), tuple(result.token_ids))
        assert list(result.log_probs) == pytest.approx(expected, abs=1e-4)
