"""An engine under new weights: proved or not, and what that means for requests that come, run and end meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from callsheet.managers.executor import AttemptResult, Broken, Completed
from callsheet.managers.inference.build import build_inference_executor
from callsheet.managers.inference.engine_kind import UnloadedEngine
from callsheet.managers.inference.executor import InferenceExecutor
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.models.config import TransformerConfig
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2, outcome_pb2, weights_pb2
from safetensors.torch import save

from tests.support.attempts_of_models import NoPayloads, generate_attempt
from tests.support.faulty_engine import Fault, FaultyEngine
from tests.support.torch_models import full_pass_log_probs, prompt, save_weights, small_model

pytestmark = pytest.mark.anyio
CONFIG = TransformerConfig(context_length=512, layers=1, width=32, heads=2, hidden_width=48)
SETTINGS = InferenceSettings(kv_cache_tokens=4 * CONFIG.context_length)
MODES = [weights_pb2.UPDATE_MODE_DRAIN, weights_pb2.UPDATE_MODE_ABORT, weights_pb2.UPDATE_MODE_KEEP]
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


@pytest.mark.parametrize("mode", MODES)
async def test_an_update_is_proved_and_told(subject: Subject, mode: int) -> None:
    assert subject.message().standing == weights_pb2.WEIGHTS_STANDING_INITIAL
    told = await subject.update(subject.order(1, mode))
    assert (told.standing, told.version, told.proved_by.sequence) == (weights_pb2.WEIGHTS_STANDING_PROVED, 1, 1)
    assert told.last_update.update.sequence == subject.sequence
    assert not told.last_update.failure
    assert len(told.last_update.canary.token_ids) == 8
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
        (Fault.IGNORED, "the canary is as before"),
        (Fault.MISLABELLED, "names version 2"),
        (Fault.DEAD, "the engine died"),
    ],
)
async def test_nothing_is_served_after_an_update_that_failed_until_one_is_proved(
    subject: Subject, fault: Fault, said: str
) -> None:
    subject.engine.faults = [fault]
    told = await subject.update(subject.order(1))
    assert told.standing == weights_pb2.WEIGHTS_STANDING_UNPROVED
    assert said in told.last_update.failure
    assert not told.HasField("proved_by")
    assert refused(await subject.generate()) == "weights_unproved"
    told = await subject.update(subject.order(1))
    assert (told.standing, told.last_update.failure) == (weights_pb2.WEIGHTS_STANDING_PROVED, "")
    assert generated(await subject.generate()).token_ids


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
