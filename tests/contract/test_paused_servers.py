"""Servers that a manager left paused, as it was killed in mid-update."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from callsheet.managers.inference.driver import UpdateMode, VersionSpan, WeightUpdate
from callsheet.managers.inference.weights import DiskWeights

from tests.support.contract_engine import Standing
from tests.support.contract_http import running
from tests.support.contract_sglang import ContractSGLang
from tests.support.served_subjects import contract_engine, contract_weights, sglang_driver
from tests.support.torch_models import prompt, request

pytestmark = pytest.mark.anyio
WAIT_S = 60


async def test_the_next_update_ends_the_pause_of_a_manager_that_was_killed(tmp_path: Path) -> None:
    server = ContractSGLang(contract_engine(tmp_path))
    async with running(server):
        server.engine.standing = Standing.RETRACT
        driver = await sglang_driver(server)
        await driver.look()
        assert driver.health.paused
        assert driver.health.alive
        source = DiskWeights(str(contract_weights(tmp_path, 3)))
        with anyio.fail_after(WAIT_S):
            await driver.update_weights(WeightUpdate(source, 3, UpdateMode.KEEP, timeout_s=WAIT_S))
            assert not driver.health.paused
            assert (await driver.generate(request("a", prompt(9)))).version_spans == (VersionSpan(3, 0, 16),)
        await driver.close()
