"""An engine under new weights: proved or not, and what that means for requests that come, run and end meanwhile."""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
import torch
from callsheet.managers.executor import AttemptResult, Broken, Completed
from callsheet.managers.inference.build import build_inference_executor
from callsheet.managers.inference.engine_kind import UnloadedEngine
from callsheet.managers.inference.executor import InferenceExecutor
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.runner import Runner
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.transformer import LanguageModel
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2, outcome_pb2, weights_pb2
from safetensors.torch import save
from torch import Tensor

from tests.support.attempts_of_models import NoPayloads, generate_attempt
from tests.support.faulty_engine import Fault, FaultyEngine
from tests.support.torch_models import full_pass_log_probs, prompt, save_weights, small_model

pytestmark = pytest.mark.anyio
CONFIG = TransformerConfig(context_length=512, layers=1, width=32, heads=2, hidden_width=48)
SETTINGS = InferenceSettings(kv_cache_tokens=4 * CONFIG.context_length)
MODES = [weights_pb2.UPDATE_MODE_DRAIN, weights_pb2.UPDATE_MODE_ABORT, weights_pb2.UPDATE_MODE_KEEP]
FIRST = weights_pb2.WeightSource(first=weights_pb2.FirstWeights())
WAIT_S = 60.0


@dataclass
class Subject:
    """An executor over a real engine that can be made to fail, and weights by their seeds.

    Attributes:
        reports: How often it asked for a heartbeat.
    """

    executor: InferenceExecutor
    engine: FaultyEngine
    weights: Path
    reports: int = 0
    sequence: int = 100

    def message(self) -> manager_service_pb2.EngineWeights:
        """What the scheduler is told."""
        return self.executor.service_states()[0].weights

    def order(
        self, version: int, mode: int = weights_pb2.UPDATE_MODE_DRAIN, **plan: object
    ) -> manager_service_pb2.UpdateWeights:
        """An update to the weights whose seed is the version."""
        source = weights_pb2.WeightSource(location=str(self.weights / str(version)))
        self.sequence += 1
        update = manager_service_pb2.UpdateWeights(
            service="policy",
            version=version,
            plan=weights_pb2.RolloutPlan(**{"source": source, "mode": mode, **plan}),  # type: ignore[arg-type]
        )
        update.plan.timeout.FromSeconds(30)
        update.update.sequence, update.rollout.sequence = self.sequence, version
        return update

    async def update(self, order: manager_service_pb2.UpdateWeights) -> manager_service_pb2.EngineWeights:
        """Does an update and returns what is told then."""
        with anyio.fail_after(WAIT_S):
            await self.executor.update_weights(order, NoPayloads())
        return self.message()

    async def generate(self, sequence: int = 1, tokens: int = 16) -> AttemptResult:
        """Generates."""
        sampling = action_pb2.SamplingParameters(max_new_tokens=tokens, temperature=1.0, seed=sequence, ignore_eos=True)
        with anyio.fail_after(WAIT_S):
            return await self.executor.run(generate_attempt(sequence, prompt(40), sampling))


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("weights")
    for seed in (0, 1, 2, 3, 99):
        save_weights(small_model(seed, CONFIG), CONFIG, directory / str(seed))
    return directory


@pytest.fixture
async def subject(weights: Path) -> AsyncIterator[Subject]:
    real = torch_engine(TorchSettings(shape=CONFIG), SETTINGS)
    engine = FaultyEngine(real.load(), weights / "0", weights / "99")
    unloaded = UnloadedEngine(real.abilities, real.capabilities, lambda: engine)
    executor = build_inference_executor(SETTINGS, unloaded)
    built = Subject(executor, engine, weights)

    def count() -> None:
        built.reports += 1

    executor.on_service_change(count)
    yield built
    await executor.close()


def generated(result: AttemptResult) -> outcome_pb2.GenerateResult:
    assert isinstance(result, Completed), result
    return result.succeeded.generate


def refused(result: AttemptResult) -> str:
    assert isinstance(result, Broken), result
    return result.failed.reason


async def test_where_places_are_named_weights_from_elsewhere_change_nothing(weights: Path, tmp_path: Path) -> None:
    """The one that is in its place goes through; the others are told the same of, and the engine serves on."""
    real = torch_engine(TorchSettings(shape=CONFIG), SETTINGS)
    settings = replace(SETTINGS, weights_below=(str(weights),))
    subject = Subject(build_inference_executor(settings, real), FaultyEngine(real.load(), weights, weights), weights)
    (tmp_path / "private").mkdir()
    told = []
    for place in (tmp_path / "private", tmp_path / "missing"):
        told.append(await subject.update(subject.order(1, source=weights_pb2.WeightSource(location=str(place)))))
        assert told[-1].standing == weights_pb2.WEIGHTS_STANDING_INITIAL
        assert f"must lie below {weights}" in told[-1].last_update.failure
    texts = [
        each.last_update.failure.replace(name, "") for each, name in zip(told, ("private", "missing"), strict=True)
    ]
    assert texts[0] == texts[1]
    assert (await subject.update(subject.order(1))).standing == weights_pb2.WEIGHTS_STANDING_PROVED
    await subject.executor.close()


@pytest.mark.parametrize("mode", MODES)
async def test_an_update_is_proved_and_told(subject: Subject, mode: int) -> None:
    assert subject.message().standing == weights_pb2.WEIGHTS_STANDING_INITIAL
    told = await subject.update(subject.order(1, mode))
    assert (told.standing, told.version, told.proved_by.sequence) == (weights_pb2.WEIGHTS_STANDING_PROVED, 1, 1)
    last = told.last_update
    assert (last.update.sequence, last.failure, len(last.canary.token_ids)) == (subject.sequence, "", 8)
    assert subject.reports == 2
    result = generated(await subject.generate())
    assert [span.version for span in result.policy_versions] == [1]
    expected = full_pass_log_probs(small_model(1, CONFIG), prompt(40), tuple(result.token_ids))
    assert list(result.log_probs) == pytest.approx(expected, abs=2e-5)


async def test_tensors_come_as_a_payload(subject: Subject) -> None:
    content = save({name: value.clone() for name, value in small_model(1, CONFIG).state_dict().items()})
    order = subject.order(1)
    order.plan.source.tensors.inline = content

    class Payloads(NoPayloads):
        async def read(self, blob: common_pb2.Blob) -> bytes:
            return blob.inline

    await subject.executor.update_weights(order, Payloads())
    assert subject.message().standing == weights_pb2.WEIGHTS_STANDING_PROVED


async def test_an_answer_is_compared_with_that_of_the_first_engine(subject: Subject) -> None:
    order = subject.order(1)
    order.reference.token_ids.extend([1] * 8)
    order.reference.log_probs.extend([-9.0] * 8)
    told = await subject.update(order)
    assert "differs from that of the first engine" in told.last_update.failure
    fresh = await subject.update(subject.order(2))
    again = subject.order(1)
    again.reference.CopyFrom(fresh.last_update.canary)
    assert "differs" in (await subject.update(again)).last_update.failure


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault.HALF, "after some of the tensors"),
        (Fault.IGNORED, "the canary differs from that of the trainer's model"),
        (Fault.MISLABELLED, "names version 2"),
        (Fault.DEAD, "the engine died"),
    ],
)
async def test_nothing_is_served_after_an_update_that_failed_until_one_is_proved(
    subject: Subject, fault: Fault, said: str
) -> None:
    subject.engine.faults = [fault]
    canary = trainers_canary(small_model(1, CONFIG))
    told = await subject.update(subject.order(1, canary=canary))
    assert (told.standing, told.HasField("proved_by")) == (weights_pb2.WEIGHTS_STANDING_UNPROVED, False)
    assert said in told.last_update.failure
    assert refused(await subject.generate()) == "weights_unproved"
    told = await subject.update(subject.order(1))
    assert (told.standing, told.last_update.failure) == (weights_pb2.WEIGHTS_STANDING_PROVED, "")
    assert generated(await subject.generate()).token_ids


def trainers_canary(model: LanguageModel) -> weights_pb2.Canary:
    """The first token that the trainer's own model answers."""
    asked = prompt(12)
    table = torch.log_softmax(model(torch.tensor([asked]))[0, -1].double(), dim=-1)
    expected = weights_pb2.CanaryAnswer(token_ids=[int(table.argmax())], log_probs=[float(table.max())])
    return weights_pb2.Canary(prompt_token_ids=asked, expected=expected)


def moved(model: LanguageModel, by: float) -> LanguageModel:
    """The model after a step of an optimiser that moves each number by so much."""
    with torch.no_grad():
        for index, parameter in enumerate(model.parameters()):
            parameter.add_(by * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(index)).sign())
    return model


@pytest.mark.parametrize("step", [0.0, 1e-6])
async def test_a_step_that_changes_the_answer_by_less_than_can_be_told_is_proved_with_a_warning(
    subject: Subject, tmp_path: Path, step: float
) -> None:
    await subject.update(subject.order(1))
    save_weights(moved(small_model(1, CONFIG), step), CONFIG, tmp_path)
    source = weights_pb2.WeightSource(location=str(tmp_path))
    told = await subject.update(subject.order(2, source=source))
    assert (told.standing, told.version) == (weights_pb2.WEIGHTS_STANDING_PROVED, 2), told
    assert "the canary is as before" in told.last_update.warning
    assert "tensors that came were compared" in told.last_update.warning
    assert generated(await subject.generate()).policy_versions[0].version == 2
    canary = weights_pb2.Canary(unchanged=True)
    told = await subject.update(subject.order(3, source=source, canary=canary))
    assert (told.version, told.last_update.warning) == (3, "")


Spoil = Callable[[Runner, Mapping[str, Tensor]], None]


def nothing(runner: Runner, state: Mapping[str, Tensor]) -> None:
    """Ignores an update."""


def all_but_one(runner: Runner, state: Mapping[str, Tensor]) -> None:
    own = runner.model.state_dict()
    for name, values in state.items():
        own[name].copy_(values if name != "head.weight" else own[name])


def one_number(runner: Runner, state: Mapping[str, Tensor]) -> None:
    own = runner.model.state_dict()
    for name, values in state.items():
        own[name].copy_(values)
    own["head.weight"].view(-1)[7].mul_(1.0 + 1e-6)


def in_half_precision(runner: Runner, state: Mapping[str, Tensor]) -> None:
    own = runner.model.state_dict()
    for name, values in state.items():
        own[name].copy_(values.half() if name == "head.weight" else values)


@pytest.mark.parametrize("spoil", [nothing, all_but_one, one_number, in_half_precision])
async def test_an_engine_that_has_other_tensors_than_came_is_refused_by_their_names(
    subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spoil: Spoil
) -> None:
    await subject.update(subject.order(1))
    save_weights(moved(small_model(1, CONFIG), 1e-6), CONFIG, tmp_path)
    monkeypatch.setattr(Runner, "load_state", spoil)
    told = await subject.update(subject.order(2, source=weights_pb2.WeightSource(location=str(tmp_path))))
    assert told.standing == weights_pb2.WEIGHTS_STANDING_UNPROVED
    assert "tensors are not as they came (" in told.last_update.failure
    assert spoil is nothing or "1 of " in told.last_update.failure
    assert spoil is nothing or "head.weight" in told.last_update.failure
    assert refused(await subject.generate()) == "weights_unproved"


@pytest.mark.parametrize("what", ["cut short", "misshapen", "no numbers", "empty", "a tensor too few"])
async def test_weights_that_are_broken_are_refused_by_name_and_the_old_ones_are_served(
    subject: Subject, tmp_path: Path, what: str
) -> None:
    await subject.update(subject.order(1))
    save_weights(small_model(2, CONFIG), CONFIG, tmp_path)
    file = tmp_path / "weights.pt"
    state = torch.load(file, weights_only=True)
    head = state.pop("head.weight")
    spoiled = {
        "misshapen": {"head.weight": head[:-1]},
        "no numbers": {"head.weight": head.masked_fill(head == head[3, 3], math.nan)},
        "a tensor too few": {},
    }
    torch.save(state | spoiled.get(what, {"head.weight": head}), file)
    os.truncate(file, {"cut short": file.stat().st_size // 2, "empty": 0}.get(what, file.stat().st_size))
    told = await subject.update(subject.order(2, source=weights_pb2.WeightSource(location=str(tmp_path))))
    assert ("weights.pt" if what in ("cut short", "empty") else "head.weight") in told.last_update.failure
    assert (told.standing, told.version) == (weights_pb2.WEIGHTS_STANDING_PROVED, 1)
    assert generated(await subject.generate()).policy_versions[0].version == 1


@pytest.mark.parametrize("fault", [None, Fault.HALF, Fault.DEAD])
async def test_an_engine_goes_back_to_the_weights_that_it_was_started_with(
    subject: Subject, fault: Fault | None
) -> None:
    before = generated(await subject.generate())
    subject.engine.faults = [fault]
    await subject.update(subject.order(1))
    told = await subject.update(subject.order(0, source=FIRST))
    assert (told.standing, told.version, told.reason) == (weights_pb2.WEIGHTS_STANDING_INITIAL, 0, "")
    assert not told.HasField("proved_by")
    after = generated(await subject.generate())
    assert (after.token_ids, after.log_probs) == (before.token_ids, before.log_probs)
    told = await subject.update(subject.order(2))
    assert told.standing == weights_pb2.WEIGHTS_STANDING_PROVED


async def test_an_engine_that_cannot_go_back_serves_nothing(subject: Subject, monkeypatch: pytest.MonkeyPatch) -> None:
    subject.engine.faults = [Fault.HALF]
    await subject.update(subject.order(1))
    monkeypatch.setattr(Runner, "load_state", nothing)
    told = await subject.update(subject.order(0, source=FIRST))
    assert told.standing == weights_pb2.WEIGHTS_STANDING_UNPROVED
    assert "are not as they came" in told.reason


async def test_an_engine_that_is_certainly_as_before_serves_on(subject: Subject) -> None:
    await subject.update(subject.order(1))
    subject.engine.faults = [Fault.INTACT]
    told = await subject.update(subject.order(2))
    assert (told.standing, told.version, told.proved_by.sequence) == (weights_pb2.WEIGHTS_STANDING_PROVED, 1, 1)
    assert told.last_update.failure == "no such weights"
    assert generated(await subject.generate()).policy_versions[0].version == 1


async def test_an_engine_that_restarts_by_itself_serves_nothing_old(subject: Subject) -> None:
    await subject.update(subject.order(1))
    await subject.engine.restart()
    assert refused(await subject.generate()) == "weights_unproved"
    assert subject.message().standing == weights_pb2.WEIGHTS_STANDING_UNPROVED
    assert (await subject.update(subject.order(1))).standing == weights_pb2.WEIGHTS_STANDING_PROVED


async def test_a_request_that_ran_into_weights_that_were_not_proved_is_not_given_to_anybody(subject: Subject) -> None:
    results: list[AttemptResult] = []

    async def run() -> None:
        results.append(await subject.generate(tokens=400))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(run)
        with anyio.fail_after(WAIT_S):
            await subject.engine.begun.wait()
        subject.engine.faults = [Fault.HALF]
        await subject.update(subject.order(1, weights_pb2.UPDATE_MODE_KEEP))
        await subject.update(subject.order(1, weights_pb2.UPDATE_MODE_KEEP))
    assert refused(results[0]) == "weights_unproved"
    assert generated(await subject.generate()).token_ids, "the second try was good"


async def test_a_request_that_comes_in_an_update_waits_and_runs_under_the_new_weights(subject: Subject) -> None:
    results: list[AttemptResult] = []

    async def run() -> None:
        results.append(await subject.generate(sequence=7))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(subject.update, subject.order(1))
        with anyio.fail_after(WAIT_S):
            while subject.message().standing != weights_pb2.WEIGHTS_STANDING_UPDATING:
                await anyio.lowlevel.checkpoint()
        tasks.start_soon(run)
    assert [span.version for span in generated(results[0]).policy_versions] == [1]


async def test_a_cancelled_update_leaves_the_weights_unproved(subject: Subject) -> None:
    with anyio.CancelScope() as scope:
        subject.executor.on_service_change(scope.cancel)
        await subject.executor.update_weights(subject.order(1), NoPayloads())
    assert scope.cancelled_caught
    assert subject.message().standing == weights_pb2.WEIGHTS_STANDING_UNPROVED


async def test_a_repeated_update_is_done_once(subject: Subject) -> None:
    order = subject.order(1)
    await subject.update(order)
    subject.engine.faults = [Fault.HALF]
    await subject.update(order)
    told = await subject.update(subject.order(1))
    assert told.standing == weights_pb2.WEIGHTS_STANDING_PROVED
    assert subject.engine.faults, "what is proved for a rollout is not done again"
