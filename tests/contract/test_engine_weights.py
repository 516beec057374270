"""Where an engine's new weights may come from besides its disk. See test_engine_driver.py."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from pathlib import Path
from subprocess import DEVNULL

import anyio
import pytest
from callsheet.managers.inference.driver import (
    UpdateMode,
    VersionSpan,
    WeightUpdate,
    WeightUpdateError,
)
from callsheet.managers.inference.weights import GroupWeights, TensorSpec, TensorWeights, WeightSource
from safetensors.torch import save_file
from torch import Tensor

from tests.support.engine_subject import Subject
from tests.support.engine_subjects import SUBJECTS
from tests.support.ports import free_port
from tests.support.torch_models import prompt, request

pytestmark = pytest.mark.anyio
WAIT_S = 60


@pytest.fixture(params=sorted(SUBJECTS))
async def subject(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Subject]:
    """Each engine there is, fresh for each test."""
    async with SUBJECTS[request.param](tmp_path) as started:
        yield started


def tensors_of(subject: Subject, kind: type[WeightSource], seed: int) -> dict[str, Tensor] | None:
    """Weights of a seed, contiguous; None where the engine does not take them from such a source."""
    if subject.tensors is None or kind not in subject.driver.capabilities.weight_sources:
        return None
    return {name: values.contiguous() for name, values in subject.tensors(seed).items()}


async def check_weights(subject: Subject, seed: int, version: int) -> None:
    """The engine serves the weights of a seed as a version."""
    result = await subject.driver.generate(request("check", prompt(40)))
    assert result.log_probs == pytest.approx(
        subject.expected(seed, prompt(40), result.token_ids), abs=subject.tolerance
    )
    assert result.version_spans == (VersionSpan(version, 0, 16),)
    assert await subject.driver.read_policy_version() == version


async def test_weights_come_as_tensors_whole_or_in_part(subject: Subject, tmp_path: Path) -> None:
    tensors = tensors_of(subject, TensorWeights, 1)
    if tensors is None:
        return
    halves = [sorted(tensors)[::2], sorted(tensors)[1::2]]
    for version, names in enumerate(halves, 1):
        path = tmp_path / f"{version}.safetensors"
        save_file({name: tensors[name] for name in names}, path)
        await subject.driver.update_weights(WeightUpdate(TensorWeights(path), version, UpdateMode.KEEP))
    await check_weights(subject, 1, 2)


async def test_unusable_tensors_leave_the_old_weights(subject: Subject, tmp_path: Path) -> None:
    tensors = tensors_of(subject, TensorWeights, 1)
    if tensors is None:
        return
    name, values = next(iter(tensors.items()))
    (tmp_path / "torn").write_bytes(b"torn")
    save_file({name: values, "stranger": values.clone()}, tmp_path / "unknown")
    save_file({name: values[:1].clone()}, tmp_path / "misshapen")
    save_file({}, tmp_path / "empty")
    for file, rule in {
        "nowhere": "cannot be read",
        "torn": "cannot be read",
        "unknown": "stranger",
        "misshapen": "instead of",
        "empty": "at least one",
    }.items():
        with pytest.raises(WeightUpdateError, match=rule) as refused:
            await subject.driver.update_weights(WeightUpdate(TensorWeights(tmp_path / file), 1, UpdateMode.KEEP))
        assert refused.value.intact
    await check_weights(subject, 0, 0)


def group_of(tensors: dict[str, Tensor], port: int) -> GroupWeights:
    """A transfer group of a trainer and this engine."""
    specs = tuple(
        TensorSpec(name, str(values.dtype).removeprefix("torch."), tuple(values.shape))
        for name, values in sorted(tensors.items())
    )
    return GroupWeights("127.0.0.1", port, "weights", 2, 1, "gloo", specs)


async def test_weights_come_from_a_trainers_group_again_and_again(subject: Subject, tmp_path: Path) -> None:
    tensors = tensors_of(subject, GroupWeights, 1)
    if tensors is None:
        return
    port = free_port()
    save_file(tensors, tmp_path / "1")
    later = tensors_of(subject, GroupWeights, 2) or {}
    save_file(later, tmp_path / "2")
    trainer = [sys.executable, "-m", "tests.support.broadcasting_trainer", str(port), "weights", "2"]
    async with await anyio.open_process(
        [*trainer, str(tmp_path / "1"), str(tmp_path / "2")], stdout=DEVNULL
    ) as process:
        with anyio.fail_after(WAIT_S):
            for version in (1, 2):
                update = WeightUpdate(group_of(tensors, port), version, UpdateMode.KEEP, timeout_s=WAIT_S)
                await subject.driver.update_weights(update)
                await check_weights(subject, version, version)
            assert await process.wait() == 0


async def test_a_group_that_never_forms_blocks_nobody(subject: Subject) -> None:
    tensors = tensors_of(subject, GroupWeights, 1)
    if tensors is None:
        return
    async with anyio.create_task_group() as tasks:

        async def update() -> None:
            nobody = WeightUpdate(group_of(tensors, free_port()), 1, UpdateMode.KEEP, timeout_s=1.0)
            with pytest.raises(WeightUpdateError) as refused:
                await subject.driver.update_weights(nobody)
            assert refused.value.intact

        tasks.start_soon(update)
        await check_weights(subject, 0, 0)
    strangers = group_of({"stranger": next(iter(tensors.values()))}, free_port())
    with pytest.raises(WeightUpdateError, match="stranger"):
        await subject.driver.update_weights(WeightUpdate(strangers, 1, UpdateMode.KEEP, timeout_s=1.0))
    await check_weights(subject, 0, 0)
