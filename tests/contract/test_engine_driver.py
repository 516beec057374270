"""What every `EngineDriver` must do, run against each driver there is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pytest
from anyio.abc import TaskGroup
from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineFailedError,
    FinishReason,
    GenerateRequest,
    Generation,
    LogProbsMode,
    RequestRefusedError,
    UpdateMode,
    VersionSpan,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.weights import DiskWeights

from tests.support.engine_subject import Subject
from tests.support.engine_subjects import SUBJECTS
from tests.support.torch_models import prompt
from tests.support.torch_models import request as plain_request
from tests.support.waiting import until

pytestmark = pytest.mark.anyio
WAIT_S = 60


@pytest.fixture(params=sorted(SUBJECTS))
async def subject(
    request: pytest.FixtureRequest, tmp_path: Path, record_property: Callable[[str, object], None]
) -> AsyncIterator[Subject]:
    """Each engine there is, fresh for each test. What one lacks is noted for `make conformance`."""
    async with SUBJECTS[request.param](tmp_path) as started:
        yield started
    for reason in started.lacking:
        record_property("lacks", reason)


def request(name: str, tokens: tuple[int, ...], **sampling: object) -> GenerateRequest:
    """A request that no end token of a model cuts short."""
    return plain_request(name, tokens, **{"ignore_eos": True, **sampling})


@dataclass
class Running:
    """A generate call in the background."""

    result: Generation | Exception | None = None
    done: anyio.Event | None = None

    async def outcome(self) -> Generation:
        """Its result, awaited."""
        assert self.done is not None
        with anyio.fail_after(WAIT_S):
            await self.done.wait()
        assert isinstance(self.result, Generation), self.result
        return self.result


async def _into(running: Running, work: Coroutine[object, object, Generation]) -> None:
    assert running.done is not None
    try:
        running.result = await work
    except Exception as error:
        running.result = error
    finally:
        running.done.set()


def begin(tasks: TaskGroup, subject: Subject, name: str, length: int = 20, **sampling: object) -> Running:
    """Starts a request."""
    running = Running(done=anyio.Event())
    tasks.start_soon(_into, running, subject.driver.generate(request(name, prompt(length), **sampling)))
    return running


async def until_begun(subject: Subject, running: Running) -> None:
    """Waits until the only request is being computed; a short one may be over before that is seen."""
    await until(lambda: subject.driver.load.running == 1 or running.result is not None)


async def test_generate(subject: Subject) -> None:
    result = await subject.driver.generate(request("a", prompt(100), max_new_tokens=24, seed=5))
    assert len(result.token_ids) == 24
    assert result.finish_reason is FinishReason.LENGTH
    assert result.version_spans == (VersionSpan(0, 0, 24),)
    assert result.log_probs == pytest.approx(subject.expected(0, prompt(100), result.token_ids), abs=subject.tolerance)
    assert result.cpu_s >= 0


async def test_equal_prompts_without_a_seed_differ_and_each_seed_gives_its_tokens_again(subject: Subject) -> None:
    async with anyio.create_task_group() as tasks:
        siblings = [begin(tasks, subject, f"{index:04}", max_new_tokens=24, seed=None) for index in range(8)]
    results = [await sibling.outcome() for sibling in siblings]
    assert len({result.token_ids for result in results}) == 8
    for result in results:
        again = await subject.driver.generate(request("again", prompt(20), max_new_tokens=24, seed=result.seed))
        assert again.seed == result.seed
        if subject.driver.capabilities.batch_invariant:
            assert again.token_ids == result.token_ids


async def test_a_seed_of_zero_is_a_seed(subject: Subject) -> None:
    if not subject.driver.capabilities.seeds:
        subject.lacks("the engine heeds no seeds")
        return
    twice = [await subject.driver.generate(request("a", prompt(20), seed=0)) for _ in range(2)]
    assert twice[0].token_ids == twice[1].token_ids
    assert twice[0].seed == 0


async def test_log_probs_of_what_was_sampled_and_of_the_model(subject: Subject) -> None:
    if not subject.driver.capabilities.log_probs_modes:
        subject.lacks("the engine tells no log-probabilities")
        return
    raw = await subject.driver.generate(
        request("a", prompt(20), seed=1, temperature=0.5, top_k=7, log_probs_mode=LogProbsMode.RAW)
    )
    sampled = await subject.driver.generate(request("b", prompt(20), seed=1, temperature=0.5, top_k=7))
    if subject.driver.capabilities.seeds:
        assert sampled.token_ids == raw.token_ids
    # An engine may tell only one of them, or neither, where both temperature and top_k are in force.
    if raw.log_probs:
        assert raw.log_probs == pytest.approx(subject.expected(0, prompt(20), raw.token_ids), abs=subject.tolerance)
    if sampled.log_probs:
        drawn = subject.expected(0, prompt(20), sampled.token_ids)
        assert sampled.log_probs != pytest.approx(drawn, abs=1e-2)
    assert set((await subject.driver.generate(request("c", prompt(20), temperature=0))).log_probs) == {0.0}


async def test_stop_texts(subject: Subject) -> None:
    if not subject.driver.capabilities.stop_texts:
        with pytest.raises(RequestRefusedError) as refused:
            await subject.driver.generate(request("a", prompt(9), stop=("x",)))
        assert refused.value.reason == "no_tokenizer"
        return
    free = await subject.driver.generate(request("a", prompt(9), temperature=0, max_new_tokens=40))
    stop = next(letter for letter in subject.text(free.token_ids) if letter != "\ufffd")
    result = await subject.driver.generate(
        request("b", prompt(9), temperature=0, max_new_tokens=40, stop=("never!", stop))
    )
    assert result.finish_reason is FinishReason.STOP
    assert result.token_ids == free.token_ids[: len(result.token_ids)]
    assert stop in subject.text(result.token_ids)
    assert stop not in subject.text(result.token_ids[:-1])


async def test_concurrent_requests_equal_single_ones(subject: Subject) -> None:
    async with anyio.create_task_group() as tasks:
        together = [begin(tasks, subject, f"{seed:04}", 30 + seed, seed=seed) for seed in range(24)]
    for seed, running in enumerate(together):
        single = await subject.driver.generate(request("single", prompt(30 + seed), seed=seed))
        result = await running.outcome()
        if subject.driver.capabilities.batch_invariant:
            assert (result.token_ids, result.log_probs) == (single.token_ids, single.log_probs)


async def test_abort_returns_partial_tokens(subject: Subject) -> None:
    async with anyio.create_task_group() as tasks:
        victim = begin(tasks, subject, "0001", max_new_tokens=subject.endless)
        other = begin(tasks, subject, "00010", max_new_tokens=10)
        await other.outcome()
        await subject.driver.abort("0001")
        result = await victim.outcome()
    assert result.finish_reason is FinishReason.ABORT
    assert len(result.token_ids) == len(result.log_probs) < subject.endless
    if subject.driver.capabilities.abort:
        assert len(result.token_ids) == result.version_spans[-1].end > 0
    else:
        subject.lacks("an abort loses the tokens")
    assert (await other.outcome()).finish_reason is FinishReason.LENGTH
    await subject.driver.abort("unknown")


async def test_cancelling_the_caller_frees_the_engine(subject: Subject) -> None:
    async with anyio.create_task_group() as tasks:
        begin(tasks, subject, "a", max_new_tokens=subject.endless)
        await until(lambda: subject.driver.load.running == 1)
        tasks.cancel_scope.cancel()
    await until(lambda: subject.driver.load.running == 0 and subject.driver.load.kv_tokens_used == 0)
    assert (await subject.driver.generate(request("a", prompt(9)))).finish_reason is FinishReason.LENGTH


async def test_a_drain_that_takes_too_long_gives_up_and_goes_on(subject: Subject) -> None:
    if UpdateMode.DRAIN not in subject.driver.capabilities.update_modes:
        subject.lacks("the driver lacks update mode drain")
        return
    update = WeightUpdate(DiskWeights(str(subject.weights(1))), 1, UpdateMode.DRAIN, timeout_s=0.01)
    async with anyio.create_task_group() as tasks:
        begin(tasks, subject, "a", max_new_tokens=subject.endless)
        await until(lambda: subject.driver.load.running == 1)
        with pytest.raises(WeightUpdateError, match="did not drain"):
            await subject.driver.update_weights(update)
        assert (await subject.driver.generate(request("b", prompt(5)))).version_spans[0].version == 0
        await subject.driver.abort("a")


@pytest.mark.parametrize("mode", list(UpdateMode))
async def test_update_weights(subject: Subject, mode: UpdateMode) -> None:
    if mode not in subject.driver.capabilities.update_modes:
        subject.lacks(f"the driver lacks update mode {mode.value}")
        return
    length = subject.lengthy if mode is UpdateMode.DRAIN else subject.endless
    update = WeightUpdate(DiskWeights(str(subject.weights(1))), 3, mode, timeout_s=WAIT_S)
    async with anyio.create_task_group() as tasks:
        running = begin(tasks, subject, "a", max_new_tokens=length)
        await until_begun(subject, running)
        # A server may have taken a request in, and not made a token for it; after this one it has, in the same batch.
        await subject.driver.generate(request("before", prompt(5), max_new_tokens=4))
        await subject.driver.update_weights(update)
        assert subject.driver.policy_version == 3
        assert await subject.driver.read_policy_version() == 3
        after = await subject.driver.generate(request("b", prompt(40)))
        if mode is UpdateMode.KEEP:
            # It went on beside the other one.
            await subject.driver.abort("a")
        result = await running.outcome()
    versions = [span.version for span in result.version_spans]
    assert result.finish_reason is (FinishReason.LENGTH if mode is UpdateMode.DRAIN else FinishReason.ABORT)
    if mode is UpdateMode.KEEP:
        assert versions == [0, 3]
        assert result.version_spans[0].end == result.version_spans[1].begin
    else:
        assert versions in ([0], [])
    assert after.log_probs == pytest.approx(subject.expected(1, prompt(40), after.token_ids), abs=subject.tolerance)
    assert after.version_spans == (VersionSpan(3, 0, 16),)


async def test_unusable_weights_leave_the_old_ones(subject: Subject, tmp_path: Path) -> None:
    if not subject.driver.capabilities.update_modes:
        subject.lacks("the engine cannot change its weights")
        return

    async def update(place: Path, version: int = 1) -> None:
        mode = min(subject.driver.capabilities.update_modes, key=lambda each: each.value)
        await subject.driver.update_weights(WeightUpdate(DiskWeights(str(place)), version, mode))

    before = await subject.driver.generate(request("a", prompt(9), temperature=0))
    broken = subject.weights(1)
    (broken / subject.weights_file).write_bytes(b"torn")
    for path in (tmp_path / "nowhere", broken):
        with pytest.raises(WeightUpdateError, match=str(path.name)):
            await update(path)
    with pytest.raises(WeightUpdateError, match=subject.misfit) as refused:
        await update(subject.other_shape())
    assert refused.value.intact or not subject.knows_intact
    with pytest.raises(WeightUpdateError, match="version is -1"):
        await update(subject.weights(1), -1)
    after = await subject.driver.generate(request("a", prompt(9), temperature=0))
    assert (after.token_ids, after.version_spans) == (before.token_ids, before.version_spans)


async def test_prefixes_are_reused_until_the_weights_change(subject: Subject) -> None:
    if not subject.driver.capabilities.prefix_cache:
        subject.lacks("the driver has no prefix cache")
        return
    await subject.driver.generate(request("a", prompt(100)))
    assert (await subject.driver.generate(request("b", prompt(100)))).cached_tokens == subject.cached_of_100
    if UpdateMode.ABORT in subject.driver.capabilities.update_modes:
        update = WeightUpdate(DiskWeights(str(subject.weights(1))), 1, UpdateMode.ABORT, timeout_s=WAIT_S)
        await subject.driver.update_weights(update)
        assert (await subject.driver.generate(request("c", prompt(100)))).cached_tokens == 0


async def test_only_prefixes_of_the_same_namespace_are_reused(subject: Subject) -> None:
    if not subject.driver.capabilities.kv_namespaces:
        subject.lacks("the driver has no namespaces")
        return
    results = [
        await subject.driver.generate(replace(request("a", prompt(100), temperature=0), kv_namespace=namespace))
        for namespace in ("v1", "v2", "v1")
    ]
    assert [result.cached_tokens for result in results] == [0, 0, subject.cached_of_100]
    assert len({result.token_ids for result in results}) == 1


async def test_the_text_of_a_result_is_that_of_its_tokens(subject: Subject) -> None:
    result = await subject.driver.generate(request("a", prompt(20), max_new_tokens=30))
    assert result.text in (None, subject.text(result.token_ids))


async def test_refusals(subject: Subject) -> None:
    with pytest.raises(RequestRefusedError) as too_long:
        await subject.driver.generate(request("a", prompt(subject.context_length)))
    assert too_long.value.reason == "prompt_too_long"
    async with anyio.create_task_group() as tasks:
        begin(tasks, subject, "a", max_new_tokens=subject.endless)
        await until(lambda: subject.driver.load.running == 1)
        with pytest.raises(RequestRefusedError) as twice:
            await subject.driver.generate(request("a", prompt(4)))
        assert twice.value.reason == "duplicate_request"
        await subject.driver.abort("a")


async def test_a_full_queue_is_refused(subject: Subject) -> None:
    most = subject.most_requests
    if most is None:
        subject.lacks("the engine has no bound of its own")
        return
    names = [f"{index:04}" for index in range(most)]
    async with anyio.create_task_group() as tasks:
        live = [begin(tasks, subject, name, max_new_tokens=subject.endless) for name in names]
        await until(lambda: subject.driver.load.running + subject.driver.load.waiting == most)
        with pytest.raises(EngineBusyError, match=f"the bound is {most}"):
            await subject.driver.generate(request("more", prompt(4)))
        for name in names:
            await subject.driver.abort(name)
    assert [(await one.outcome()).finish_reason for one in live] == [FinishReason.ABORT] * most


async def test_close_ends_what_is_running(subject: Subject) -> None:
    async with anyio.create_task_group() as tasks:
        running = begin(tasks, subject, "a", max_new_tokens=subject.endless)
        await until(lambda: subject.driver.load.running == 1)
        await subject.driver.close()
        assert (await running.outcome()).finish_reason is FinishReason.ABORT
    assert not subject.driver.health.alive
    with pytest.raises(EngineFailedError):
        await subject.driver.generate(request("b", prompt(4)))
    await subject.driver.close()
