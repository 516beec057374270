"""Sandboxes that are made at once while making them fails: one tries for all after a failure."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import anyio
import anyio.lowlevel
import pytest
from callsheet.managers.sandbox.backend import SandboxSpec
from callsheet.managers.sandbox.errors import SandboxCreateError
from callsheet.managers.sandbox.memory_ledger import MemoryLedger
from callsheet.managers.sandbox.provisioning.admitting_backend import AdmittingBackend
from callsheet.managers.sandbox.provisioning.creation_pace import CreationPace

STORM = 100


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("failures", "ends", "tries"),
    [
        (1, {"made": STORM - 1, "SandboxCreateError": 1}, STORM),
        (STORM, {"SandboxCreateError": 1, "CreationsFailingError": STORM - 1}, 2),
    ],
    ids=["a failure that passes meets one", "a failure that stays is found by two tries"],
)
async def test_after_a_failure_one_tries_for_all(failures: int, ends: dict[str, int], tries: int) -> None:
    counts = Counter[str]()

    async def create(*_: object) -> Mock:
        counts["tries"] += 1
        await anyio.lowlevel.checkpoint()
        if counts["tries"] <= failures:
            raise SandboxCreateError("the disk is full")
        return Mock()

    inner: Any = SimpleNamespace(create=create)
    backend = AdmittingBackend(inner, MemoryLedger(None), CreationPace(0.01, 0.05), most_waiting=STORM)

    async def make(number: int) -> None:
        try:
            await backend.create(SandboxSpec(str(number), 64, 1, 8, frozenset()), lambda _: None)
            counts["made"] += 1
        except SandboxCreateError as error:
            counts[type(error).__name__] += 1

    await make(0)
    async with anyio.create_task_group() as tasks:
        for number in range(1, STORM):
            tasks.start_soon(make, number)
    assert (counts, backend.is_slow) == ({**ends, "tries": tries}, failures > 1)
