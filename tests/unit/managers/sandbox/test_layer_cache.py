"""The cache of layers: each is made once, kept over restarts and removed when there are too many."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from callsheet.managers.sandbox.files.images.layer_cache import BuiltLayer, LayerCache, LayerHold

pytestmark = pytest.mark.anyio


class Builder:
    """Builds layers on request, one after another as told."""

    def __init__(self, *problems: Exception | None) -> None:
        self.calls = 0
        self.go = anyio.Event()
        self._problems = list(problems)

    async def __call__(self, target: Path) -> BuiltLayer:
        self.calls += 1
        await self.go.wait()
        (target / "file").write_text("content")
        problem = self._problems.pop(0) if self._problems else None
        if problem is not None:
            raise problem
        return BuiltLayer(100, b"note")


async def gather(cache: LayerCache, builder: Builder, count: int, stop: anyio.Event) -> list[LayerHold | Exception]:
    """Asks for the same layer several times at once; lets the builder go when all wait."""
    answers: list[LayerHold | Exception] = []

    async def ask() -> None:
        try:
            answers.append(await cache.obtain("key", builder, stop, shared=(KeyError,)))
        except Exception as error:
            answers.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(count):
            tasks.start_soon(ask)
        await anyio.wait_all_tasks_blocked()
        builder.go.set()
    return answers


@pytest.fixture
def cache(tmp_path: Path) -> LayerCache:
    return LayerCache(tmp_path / "cache", 1000)


async def test_a_storm_builds_once(cache: LayerCache) -> None:
    builder = Builder()
    answers = await gather(cache, builder, 1000, anyio.Event())
    assert builder.calls == 1
    assert len({lease.path for lease in answers if isinstance(lease, LayerHold)}) == 1
    lease = answers[0]
    assert isinstance(lease, LayerHold)
    assert (lease.path / "file").read_text() == "content"
    assert lease.note() == b"note"


async def test_a_failure_that_would_meet_all_is_told_to_all_that_wait_and_not_remembered(cache: LayerCache) -> None:
    builder = Builder(KeyError("broken"))
    answers = await gather(cache, builder, 100, anyio.Event())
    assert builder.calls == 1
    assert all(isinstance(answer, KeyError) for answer in answers)
    assert isinstance(await cache.obtain("key", builder, anyio.Event()), LayerHold)


async def test_after_any_other_failure_the_next_one_builds(cache: LayerCache) -> None:
    builder = Builder(OSError("disk"), OSError("disk"))
    answers = await gather(cache, builder, 10, anyio.Event())
    assert builder.calls == 3
    assert sum(isinstance(answer, LayerHold) for answer in answers) == 8


async def test_after_a_cancelled_build_the_next_one_builds(cache: LayerCache, tmp_path: Path) -> None:
    builder = Builder()
    with anyio.CancelScope() as leading:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cache.obtain, "key", builder, anyio.Event())
            await anyio.wait_all_tasks_blocked()
            leading.cancel()
    assert list((tmp_path / "cache").iterdir()) == []
    answers = await gather(cache, builder, 1, anyio.Event())
    assert isinstance(answers[0], LayerHold)
    assert builder.calls == 2


def _size_bytes(cache: LayerCache) -> int:
    return sum(entry.size_bytes for entry in cache._entries.values())


async def test_what_is_too_much_goes_but_not_what_is_leased(cache: LayerCache, tmp_path: Path) -> None:
    builder = Builder()
    builder.go.set()
    leases = [await cache.obtain(f"layer-{number}", builder, anyio.Event()) for number in range(12)]
    assert _size_bytes(cache) == 1200
    for lease in leases:
        lease.release()
        lease.release()
    again = cache.lease("layer-0")
    assert again is not None
    await cache.obtain("one-more", builder, anyio.Event())
    assert _size_bytes(cache) == 1000
    assert "layer-0" in cache
    assert "layer-1" not in cache
    assert not (tmp_path / "cache" / "layer-1").exists()
    assert len(list((tmp_path / "cache").iterdir())) == 10


async def test_complete_layers_outlive_the_process_and_halves_do_not(cache: LayerCache, tmp_path: Path) -> None:
    builder = Builder()
    builder.go.set()
    for number in range(3):
        (await cache.obtain(f"layer-{number}", builder, anyio.Event())).release()
    used = cache.lease("layer-0")
    assert used is not None
    half = tmp_path / "cache" / ".partial-x" / "layer" / "locked"
    half.mkdir(parents=True)
    half.chmod(0)
    again = LayerCache(tmp_path / "cache", 200)
    assert _size_bytes(again) == 200
    assert "layer-0" in again
    assert "layer-1" not in again
    assert not half.parent.exists()
    lease = again.lease("layer-0")
    assert lease is not None
    assert lease.note() == b"note"
    assert again.holds(lease.path)
    assert not again.holds(tmp_path)
