"""TRL's AsyncGRPOTrainer with Callsheet's rollout worker and weight transfer.

Its first step is an oracle: the policy that sampled is the one that trains, so ratio is 1 and KL 0 if tokens, masks,
log-probabilities and weights are right all the way.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
import trl.experimental.async_grpo.async_grpo_trainer as their_trainer
from callsheet.client.sync import SyncClient
from callsheet.integrations.trl import CallsheetRollout, CallsheetRolloutWorker, CallsheetWeights
from datasets import Dataset
from torch.nn import functional
from transformers import AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from tests.trainers.notes import NoteTasks


class AttentionForCpu:
    """What is used of flash attention, which needs a GPU: causal attention of several sequences, one after another."""

    @staticmethod
    def flash_attn_varlen_func(  # noqa: PLR0917  its order is theirs
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        starts_q: torch.Tensor,
        starts_k: torch.Tensor,
        longest_q: int,
        longest_k: int,
        *,
        softmax_scale: float | None = None,
        causal: bool = True,
        **_: Any,
    ) -> torch.Tensor:
        """Tensors are (tokens, heads, width); queries are aligned with the ends of their keys."""
        del longest_q, longest_k
        assert causal
        groups = query.size(1) // key.size(1)
        parts: list[torch.Tensor] = []
        for index in range(len(starts_q) - 1):
            q = query[starts_q[index] : starts_q[index + 1]].transpose(0, 1)
            k = key[starts_k[index] : starts_k[index + 1]].transpose(0, 1).repeat_interleave(groups, dim=0)
            v = value[starts_k[index] : starts_k[index + 1]].transpose(0, 1).repeat_interleave(groups, dim=0)
            seen = torch.ones(q.size(1), k.size(1), dtype=torch.bool).tril(k.size(1) - q.size(1))
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=softmax_scale)
            parts.append(mixed.transpose(0, 1))
        return torch.cat(parts)


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the place of what AsyncGRPOTrainer has for GPUs alone."""
    if hasattr(their_trainer, "TREE_ATTENTION"):
        from trl.experimental.async_grpo import packing

        monkeypatch.setattr(packing, "_flash_attn", AttentionForCpu)
        monkeypatch.setattr(their_trainer, "get_peak_flops_per_device", lambda *_: None)
        return
    # Before 1.16 it packs sequences for a kernel by its name; torch's attention tells them apart by their positions.
    made = their_trainer.create_model_from_path
    monkeypatch.setattr(
        their_trainer,
        "create_model_from_path",
        lambda model, **options: made(model, **{**options, "attn_implementation": "sdpa"}),
    )


@pytest.mark.usefixtures("on_a_cpu")
def test_the_first_step_has_ratio_1_and_kl_0(address: str, model_directory: Path, tmp_path: Path) -> None:
    job_id = f"async-{uuid.uuid4().hex[:8]}"
    args = AsyncGRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        num_generations=4,
        max_completion_length=160,
        max_steps=3,
        learning_rate=1e-3,
        temperature=1.0,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        bf16=False,
        dtype="float32",
        token_budget=-1,
        weight_sync_steps=1,
        max_staleness=4,
        disable_tqdm=True,
    )
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    rollout = CallsheetRollout(address, NoteTasks(8), job_id=job_id)
    weights = CallsheetWeights(rollout)
    worker = CallsheetRolloutWorker(rollout, weights, tokenizer, args, num_generations=4)
    trainer = AsyncGRPOTrainer(
        model=str(model_directory),
        args=args,
        train_dataset=Dataset.from_list(rollout.dataset_rows()),
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=weights,
    )
    trainer.train()
    first, *others = [entry for entry in trainer.state.log_history if "ratio" in entry]
    assert abs(first["ratio"] - 1.0) < 1e-4, first
    assert abs(first["kl"]) < 1e-6, first
    assert others
    logged = [entry for entry in trainer.state.log_history if "callsheet/episodes_total" in entry]
    assert logged
    assert all(entry["callsheet/excluded_total"] == 0.0 for entry in logged)
    assert all(entry.get("sample/staleness_max", 0.0) <= 4 for entry in trainer.state.log_history)
    # What training began with, and each step's.
    assert weights.version == 4
    with SyncClient(address) as client:
        assert [status for status in client.jobs() if status.spec.job_id == job_id] == []
