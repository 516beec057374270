"""Hosted models on a GPU: restores into its arena, scores as on the CPU, and a model that comes back."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
import torch
from callsheet.managers.reward.hosted.executor import HostedModelsExecutor
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.reward.hosted.tickets import ModelAnswer

from tests.support.hosted_models import load_model, make_model

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


async def test_models_share_the_arena_of_a_gpu(tmp_path: Path) -> None:
    models = tuple(make_model(tmp_path, architecture) for architecture in ("qwen2", "bert", "gpt2"))
    executor = HostedModelsExecutor(HostedSettings(models=models, memory_budget_mib=1, device="cuda:0"))
    with anyio.fail_after(200):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(executor.serve)
            for _ in range(2):
                for model in models:
                    asked = executor.host.ask(model.name, {"token_ids": [5, 6, 7]})
                    await asked.done.wait()
                    assert isinstance(asked.answer, ModelAnswer), asked.answer
                    alone = float(load_model(model)(input_ids=torch.tensor([[5, 6, 7]])).logits[0, 0])
                    assert asked.answer.score == pytest.approx(alone, abs=1e-3)
            tasks.cancel_scope.cancel()
    await executor.close()
