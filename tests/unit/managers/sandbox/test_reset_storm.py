"""A thousand resets of one set-up at once, through a manager's executor: the work is done once, and so is what fails.

Sandboxes are stand-ins that count: a thousand real ones take a minute. `test_sandbox_set_ups` has a storm of real ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import anyio
import anyio.lowlevel
import pytest
from callsheet.managers.executor import AttemptResult, Broken, Completed
from callsheet.managers.sandbox.agent_client.sandbox import AgentSandbox
from callsheet.managers.sandbox.backend import CommandOutcome, SandboxSpec
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.executor.executor import SandboxExecutor
from callsheet.managers.sandbox.files.images.layer_cache import LayerCache
from callsheet.managers.sandbox.isolation.agent_backend import AgentBackend
from callsheet.managers.sandbox.janitor import ManagerDirectory
from callsheet.managers.sandbox.memory_ledger import MemoryLedger
from callsheet.managers.sandbox.provisioning.admitting_backend import AdmittingBackend
from callsheet.managers.sandbox.provisioning.creation_pace import CreationPace
from callsheet.managers.sandbox.provisioning.provisioner import Provisioner
from callsheet.managers.sandbox.settings import Isolation, SandboxSettings
from callsheet.v1 import outcome_pb2

from tests.support.sandbox_attempts import attempt_of, reset

pytestmark = pytest.mark.anyio

STORM = 1000
MEMORY_MIB = 64
DONE = CommandOutcome(0, 0, b"done\n", b"", 0, 0, 0.5, 0.5, 0, False, False)


class _Sandbox:
    """Runs nothing; its files are a word."""

    loss = None

    def __init__(self, spec: SandboxSpec, counts: Counter[str], outcome: CommandOutcome) -> None:
        self.spec = spec
        self._counts = counts
        self._outcome = outcome
        self._releases: list[Callable[[], None]] = []

    async def execute(self, *_: object) -> CommandOutcome:
        self._counts["set-ups"] += 1
        await anyio.lowlevel.checkpoint()
        return self._outcome

    async def has_processes(self) -> bool:
        return False

    async def save_changes(self, target: Path, limit_bytes: int) -> int:
        del limit_bytes
        self._counts["saved"] += 1
        (target / "word").write_text("kept")
        return 4

    async def grant(self, cores: frozenset[int]) -> None:
        del cores

    async def pause(self) -> None:
        self._counts["pauses"] += 1

    def untold_cpu_s(self) -> float:
        return 0.0

    async def resume(self, cores: frozenset[int] | None = None) -> None:
        del cores
        self._counts["resumes"] += 1

    def on_destroyed(self, release: Callable[[], None]) -> None:
        self._releases.append(release)

    async def destroy(self) -> None:
        self._counts["destroyed"] += 1
        while self._releases:
            self._releases.pop()()


class _Backend:
    """Makes such sandboxes; the first `failures` of them cannot be made."""

    overlays = True
    images = None

    def __init__(self, outcome: CommandOutcome, failures: int) -> None:
        self.counts: Counter[str] = Counter()
        self._outcome = outcome
        self._failures = failures

    async def create(self, spec: SandboxSpec, on_lost: Callable[[str], None]) -> AgentSandbox:
        del on_lost
        self.counts["tries"] += 1
        await anyio.lowlevel.checkpoint()
        if self.counts["tries"] <= self._failures:
            raise SandboxCreateError("the disk is full")
        self.counts["begun with the layer"] += spec.root.snapshot is not None
        made: Any = _Sandbox(spec, self.counts, self._outcome)
        return cast("AgentSandbox", made)

    async def close(self) -> None:
        """Holds nothing."""


@asynccontextmanager
async def running(
    directory: Path,
    *,
    outcome: CommandOutcome = DONE,
    failures: int = 0,
    memory_mib: int | None = None,
) -> AsyncIterator[tuple[SandboxExecutor, Counter[str]]]:
    settings = SandboxSettings("m", directory, isolation=Isolation.NONE, use_control_groups=False)
    inner = _Backend(outcome, failures)
    pace = CreationPace(0.01, 0.05)
    backend = AdmittingBackend(cast("AgentBackend", inner), MemoryLedger(memory_mib), pace, most_waiting=4096)
    cache = LayerCache(directory / "layers", 1 << 30)
    provisioner = Provisioner(
        backend, cache, None, keep_set_ups=True, warm_memory_mib=0, largest_set_up_bytes=1 << 20, environment=[]
    )
    executor = SandboxExecutor(backend, settings, ManagerDirectory(directory, "m"), provisioner)
    try:
        yield executor, inner.counts
    finally:
        await executor.close()


async def storm(executor: SandboxExecutor) -> list[AttemptResult]:
    results: list[AttemptResult] = []

    async def one(number: int) -> None:
        action = reset(set_up="make fixtures", trajectory=str(number))
        results.append(await executor.run(attempt_of(action, resources={"memory": MEMORY_MIB})))

    async with anyio.create_task_group() as tasks:
        for number in range(STORM):
            tasks.start_soon(one, number)
    return results


def reasons(results: list[AttemptResult]) -> Counter[str]:
    """How many failed, by kind and reason."""
    failed = [result.failed for result in results if isinstance(result, Broken)]
    return Counter(f"{outcome_pb2.FailureKind.Name(each.kind)[13:]} {each.reason}" for each in failed)


async def test_the_set_up_is_run_once_and_each_sandbox_made_once(tmp_path: Path) -> None:
    async with running(tmp_path) as (executor, counts):
        results = await storm(executor)
        made = [result.succeeded.env_reset for result in results if isinstance(result, Completed)]
        assert len(made) == STORM
        assert Counter(one.set_up_reused for one in made) == {False: 1, True: STORM - 1}
        assert {one.set_up.stdout.inline for one in made} == {b"done\n"}
        assert (counts["set-ups"], counts["saved"], counts["destroyed"]) == (1, 1, 0)
        assert (counts["tries"], counts["begun with the layer"]) == (STORM, STORM - 1)
        assert len(executor.sandboxes()) == STORM


async def test_a_set_up_that_fails_is_run_once_and_makes_one_sandbox(tmp_path: Path) -> None:
    failing = CommandOutcome(2, 0, b"", b"no\n", 0, 0, 0.5, 0.5, 0, False, False)
    async with running(tmp_path, outcome=failing) as (executor, counts):
        assert reasons(await storm(executor)) == {"ENV set_up_failed": STORM}
        assert (counts["set-ups"], counts["tries"], counts["destroyed"]) == (1, 1, 1)
        assert executor.sandboxes() == []


async def test_what_the_memory_does_not_hold_is_refused_by_reason_before_it_is_made(tmp_path: Path) -> None:
    async with running(tmp_path, memory_mib=100 * MEMORY_MIB) as (executor, counts):
        assert reasons(await storm(executor)) == {"INFRA memory_exhausted": STORM - 100}
        assert (counts["set-ups"], counts["tries"]) == (1, 100)


async def test_where_sandboxes_cannot_be_made_few_tries_tell_all(tmp_path: Path) -> None:
    async with running(tmp_path, failures=1 << 30) as (executor, counts):
        told = reasons(await storm(executor))
        assert told == {"INFRA sandbox_not_created": 1, "INFRA creations_failing": STORM - 1}
        assert (counts["set-ups"], counts["tries"]) == (0, 2)


async def test_a_storm_goes_on_after_a_passing_failure(tmp_path: Path) -> None:
    async with running(tmp_path, failures=1) as (executor, counts):
        results = await storm(executor)
        assert reasons(results) == {"INFRA sandbox_not_created": 1}
        assert sum(isinstance(result, Completed) for result in results) == STORM - 1
        assert (counts["set-ups"], counts["tries"]) == (1, STORM)
