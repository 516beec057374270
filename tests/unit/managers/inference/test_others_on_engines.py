"""What others have on an engine's server, from what that tells late."""

from __future__ import annotations

import pytest
from callsheet.managers.inference.driver import OthersLoad
from callsheet.managers.inference.http_engine.looks import STALE_S, OthersBooks
from callsheet.managers.inference.sglang_engine import requests as sglang
from callsheet.managers.inference.vllm_engine import requests as vllm


def test_what_is_told_beyond_own_requests_is_others() -> None:
    books = OthersBooks()
    assert books.told(OthersLoad(5, 900), 2, 300, 1.0)
    assert books.found == OthersLoad(3, 600)
    assert not books.told(OthersLoad(5, 920), 2, 300, 2.0)
    assert books.told(OthersLoad(5, 1500), 2, 300, 3.0)


def test_own_requests_that_have_just_ended_are_nobody_elses() -> None:
    books = OthersBooks()
    books.own(4, 800, 1.0)
    assert not books.told(OthersLoad(4, 800), 0, 0, 2.0)
    assert books.told(OthersLoad(4, 800), 0, 0, 1.0 + STALE_S + 0.1)
    assert books.found == OthersLoad(4, 800)


def test_what_is_not_told_changes_nothing_and_a_lost_server_has_nobody() -> None:
    books = OthersBooks()
    books.told(OthersLoad(1, 10), 0, 0, 1.0)
    assert not books.told(None, 0, 0, 2.0)
    assert books.found == OthersLoad(1, 10)
    books.forget()
    assert books.found == OthersLoad()


def test_tokens_without_a_sequence_are_what_own_ones_left() -> None:
    assert not OthersBooks().told(OthersLoad(0, 900), 0, 0, 1.0)


@pytest.mark.parametrize(
    ("answer", "load"),
    [
        ({"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 1, "num_used_tokens": 70}]}, OthersLoad(3, 70)),
        ({"loads": [{"num_running_reqs": 2}, {"num_running_reqs": 1}]}, OthersLoad(3, 0)),
        ([{"dp_rank": 0, "num_reqs": 4, "num_waiting_reqs": 1, "num_tokens": 50}], OthersLoad(4, 50)),
        ({"loads": [{"num_running_reqs": "many"}]}, OthersLoad()),
        ({"error": "no"}, None),
        ("no", None),
    ],
)
def test_sglang_tells_it_in_two_ways(answer: object, load: OthersLoad | None) -> None:
    assert sglang.load_of(answer) == load


def test_vllm_tells_it_in_its_metrics() -> None:
    lines = (
        "# TYPE vllm:num_requests_running gauge",
        'vllm:num_requests_running{engine="0",model_name="m x"} 2.0',
        'vllm:num_requests_running{engine="1",model_name="m x"} 1.0',
        'vllm:num_requests_waiting{engine="0",model_name="m x"} 1.0',
        'vllm:num_requests_waiting_by_reason{engine="0"} 7.0',
        'vllm:kv_cache_usage_perc{engine="0"} 0.25',
    )
    assert vllm.load_of("\n".join(lines), 1000) == OthersLoad(4, 250)
    assert vllm.load_of("process_start_time_seconds 1.0", 1000) is None
