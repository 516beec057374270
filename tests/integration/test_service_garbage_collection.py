"""A service that ran in a process leaves its garbage collector as it was."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from callsheet.scheduler.service.garbage_collection import THRESHOLDS
from callsheet.scheduler.service.settings import SchedulerSettings

from tests.support.raw_service import running_service

pytestmark = pytest.mark.anyio


async def test_the_collector_is_set_for_as_long_as_the_service_runs(tmp_path: Path) -> None:
    before = gc.get_threshold()
    async with running_service(SchedulerSettings(tmp_path, listen="127.0.0.1:0")):
        assert gc.get_threshold() == THRESHOLDS
    assert gc.get_threshold() == before
