"""No call is made twice, whatever kills or stops the scheduler and the manager that makes it.

`CALLSHEET_FAULT_SEED` repeats a run that failed; the failure shows its seed.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.counted_calls import FORMS, OF_POSTGRESQL, count_calls
from tests.support.measurements import Measured
from tests.support.servers import postgres_server

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(320)]


async def test_no_call_is_made_twice_on_sqlite(tmp_path: Path, chance: random.Random, measured: Measured) -> None:
    forms = [form for form in FORMS if form not in OF_POSTGRESQL]
    chance.shuffle(forms)
    measured(str(dict(await count_calls(tmp_path, chance, forms))))


async def test_no_call_is_made_twice_on_postgresql(tmp_path: Path, chance: random.Random, measured: Measured) -> None:
    with postgres_server() as server:
        found = await count_calls(tmp_path, chance, [*OF_POSTGRESQL, "killed at once"], server.new_database())
    measured(str(dict(found)))
