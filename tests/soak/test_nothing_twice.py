"""No call is made twice: fifty faults of each form, with the forms of a database side by side."""

from __future__ import annotations

import os
import random
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from tests.support.counted_calls import FORMS, OF_POSTGRESQL, count_calls
from tests.support.measurements import Measured
from tests.support.servers import postgres_server

# By day tests/faults/test_nothing_twice.py has one fault of each form.
pytestmark = [pytest.mark.anyio, pytest.mark.nightly]
_FAULTS = 50
_AT_ONCE = 4


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
async def test_no_call_is_made_twice_through_fifty_faults_of_each_form(
    database: str, tmp_path: Path, measured: Measured
) -> None:
    seed = os.environ.get("CALLSHEET_FAULT_SEED", "1")
    found, places = Counter[str](), anyio.CapacityLimiter(_AT_ONCE)

    async def strike(form: str, database_url: str) -> None:
        async with places:
            directory = tmp_path / form.replace(" ", "-")
            directory.mkdir()
            found.update(await count_calls(directory, random.Random(seed + form), [form] * _FAULTS, database_url))

    with ExitStack() as servers:
        postgres = servers.enter_context(postgres_server()) if database == "postgresql" else None
        forms = [form for form in FORMS if postgres is not None or form not in OF_POSTGRESQL]
        async with anyio.create_task_group() as tasks:
            for form in forms:
                tasks.start_soon(strike, form, "" if postgres is None else postgres.new_database())
    measured(f"{len(forms)} forms, {_FAULTS} faults each, seed {seed}: 0 calls made twice; {dict(found)}")
