"""The benchmark of KV admission on a small load: a client, a scheduler, and an embedded engine, with it and without."""

from __future__ import annotations

import json

import pytest
from callsheet.benchmarks.kv.run import UnusableEngineError, run_kv_bench
from callsheet.benchmarks.kv.settings import KvBenchSettings

pytestmark = pytest.mark.anyio


async def test_both_policies_get_through_their_turns() -> None:
    settings = KvBenchSettings(
        demands=(0.5,),
        bounds=(2,),
        context=256,
        observed=16,
        turns=3,
        tokens=2,
        tool_s=0.02,
        warm_up_s=0.1,
        measure_s=1.0,
    )
    lines: list[str] = []
    report = await run_kv_bench(settings, lines.append)
    (point,) = report.demands
    assert not point.failures
    assert point.live == 15
    assert report.kv_tokens == 8192
    assert report.prefill_s > 0.0
    # How many, and so the bars, are chance under so small a load.
    assert point.callsheet.turns > 0
    assert point.plain[2].turns > 0
    assert len(lines) == 3
    json.dumps(report.as_json())


async def test_a_load_that_the_engine_cannot_take_is_refused() -> None:
    with pytest.raises(UnusableEngineError, match="may come to"):
        await run_kv_bench(KvBenchSettings(context=8000))
