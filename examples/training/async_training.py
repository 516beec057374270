"""The same training by AsyncGRPO: rollouts go on while it trains on batches of what has finished."""

from __future__ import annotations

import argparse
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
import trl.experimental.async_grpo.async_grpo_trainer as their_trainer
from callsheet.environments.seats import SeatSettings
from callsheet.integrations.trl import CallsheetRollout, CallsheetRolloutWorker, CallsheetWeights
from datasets import Dataset
from torch.nn import functional
from transformers import AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from examples.training.filters import FilterTasks
from examples.training.measuring import Measured, MeasureSteps

WITHIN: Final = 4
"""By how many versions a trajectory may be behind when it is trained on."""
LIVE: Final = 32
"""Trajectories at once."""
SIZE: Final = "callsheet/batch_trajectories"


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


def train_on_cpus() -> None:
    """Takes the place of what AsyncGRPOTrainer has for GPUs alone, in this process."""
    if hasattr(their_trainer, "TREE_ATTENTION"):
        from trl.experimental.async_grpo import packing

        packing._flash_attn = AttentionForCpu
        their_trainer.get_peak_flops_per_device = lambda *_: None
        return
    # Before 1.16 it packs sequences for a kernel by its name; torch's attention tells them apart by their positions.
    made = their_trainer.create_model_from_path
    their_trainer.create_model_from_path = lambda model, **options: made(
        model, **{**options, "attn_implementation": "sdpa"}
    )


def async_trainer(
    given: argparse.Namespace, tasks: FilterTasks, shared: dict[str, Any], measured: Measured
) -> AsyncGRPOTrainer:
    """Returns the trainer. It takes batches of one group or more, up to the trajectories of a step.

    Args:
        given: Options of the program.
        tasks: The tasks.
        shared: Settings of `GRPOConfig` that it has, too.
        measured: Is told of steps.
    """
    train_on_cpus()
    group = shared["num_generations"]
    args = AsyncGRPOConfig(**shared, token_budget=-1, max_staleness=WITHIN, max_inflight_tasks=LIVE, dtype="float32")
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    seats = SeatSettings(max_replacements=group, spare=given.spare)
    rollout = CallsheetRollout(given.address, tasks, job_id=f"filters-{uuid.uuid4().hex[:8]}", seats=seats)
    weights = CallsheetWeights(rollout)
    worker = CallsheetRolloutWorker(
        rollout, weights, tokenizer, args, num_generations=group, at_least=group, seed=given.seed
    )
    return AsyncGRPOTrainer(
        model=str(given.model),
        args=args,
        train_dataset=Dataset.from_list(rollout.dataset_rows()),
        processing_class=tokenizer,
        rollout_worker=worker,
        weight_transfer=weights,
        callbacks=[MeasureSteps(measured)],
    )


def batches_of(log: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns what the adapter logged of batches: their mean size by step, and trajectories by staleness."""
    staleness: Counter[int] = Counter()
    for entry in log:
        for name, value in entry.items():
            if name.startswith("callsheet/staleness/"):
                staleness[int(name.removeprefix("callsheet/staleness/").removesuffix("_total"))] += int(value)
    sizes = [entry[SIZE] for entry in log if SIZE in entry]
    return {"batch_trajectories": sizes, "staleness": dict(sorted(staleness.items()))} if sizes else {}
