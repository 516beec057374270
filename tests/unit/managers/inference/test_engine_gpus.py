"""How many GPUs an engine holds: as many as it tells, unless its operator does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from callsheet.managers.inference.executor import build_inference_executor
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.sglang_engine.server import server_of as sglang_server
from callsheet.managers.inference.sglang_engine.settings import SGLangSettings
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.settings import TorchSettings
from callsheet.managers.inference.vllm_engine.server import server_of as vllm_server
from callsheet.managers.inference.vllm_engine.settings import VLLMSettings

EXPERTS = {"tensor_parallel_size": 2, "data_parallel_size": 16, "data_parallel_size_local": 2}
SETTINGS = InferenceSettings(threads=1, load_at_first_use=True)


@pytest.mark.parametrize(
    ("told", "gpus"),
    [
        ({}, 0),
        ({"device": "cpu", "tp_size": 2}, 0),
        ({"device": "cuda"}, 0),
        ({"device": "cuda", "tp_size": 1, "pp_size": 1, "dp_size": 1}, 1),
        ({"device": "cuda", "tp_size": 4, "pp_size": 2, "dp_size": 3}, 24),
        ({"device": "cuda", "tp_size": 8, "pp_size": 1, "dp_size": 4, "enable_dp_attention": True}, 8),
        ({"device": "cuda", "tp_size": 8}, 8),
    ],
)
def test_an_sglang_server_tells_its_ranks(told: dict[str, Any], gpus: int) -> None:
    assert sglang_server(told, {}, SGLangSettings()).abilities.gpus == gpus


@pytest.mark.parametrize(
    ("device", "ranks", "gpus"),
    [
        (None, None, 0),
        ({"device_type": "cpu", "device": "cpu"}, {"tensor_parallel_size": 2}, 0),
        ({"device_type": "cuda", "device": "cuda"}, {"tensor_parallel_size": 4, "data_parallel_size": 2}, 8),
        ({"device": "cuda:0"}, {"tensor_parallel_size": 1, "pipeline_parallel_size": 2}, 2),
        ({"device": "cuda"}, {"tensor_parallel_size": 2, "prefill_context_parallel_size": 2}, 4),
        ({"device": "cuda"}, EXPERTS | {"data_parallel_external_lb": False, "data_parallel_hybrid_lb": False}, 32),
        ({"device": "cuda"}, EXPERTS | {"data_parallel_external_lb": True}, 4),
        ({"device": "cuda"}, EXPERTS | {"data_parallel_hybrid_lb": True}, 4),
        ({"device_type": "cuda"}, {"tensor_parallel_size": "many"}, 0),
        ({"device_type": "cuda"}, {}, 1),
    ],
)
def test_a_vllm_server_tells_its_ranks(device: object, ranks: object, gpus: int) -> None:
    config = {"device_config": device, "parallel_config": ranks}
    assert vllm_server(config, "0", "", VLLMSettings()).abilities.gpus == gpus


@pytest.mark.parametrize(
    ("device", "told", "of_the_node", "reserved"),
    [
        ("cpu", None, 8, {"cpu": 1}),
        ("cuda", None, 8, {"cpu": 1, "gpu": 1}),
        ("cuda:1", None, 0, {"cpu": 1}),
        ("cuda", 4, 2, {"cpu": 1, "gpu": 2}),
        ("cuda", 0, 2, {"cpu": 1}),
    ],
)
def test_an_engine_of_the_process_reserves_those_of_its_node(
    device: str, told: int | None, of_the_node: int, reserved: dict[str, int]
) -> None:
    settings = replace(SETTINGS, engine_gpus=told)
    engine = torch_engine(TorchSettings(device=device), settings)
    (service,) = build_inference_executor(settings, engine, node_gpus=of_the_node).services()
    assert service.reserved == reserved
