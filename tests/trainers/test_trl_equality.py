"""Greedy and with the same weights: tokens, masks and log-probabilities are those of TRL's own path.

TRL's own path is its loop of tools with an `environment_factory`, and transformers' `generate` for each turn.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from callsheet.client import LogProbsMode, Sampling
from callsheet.integrations.trl import CallsheetRollout, callsheet_score
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tests.trainers.notes import NotesForTrl, NoteTasks, question_of

COUNT = int(os.environ.get("CALLSHEET_TRAJECTORIES", "200"))
MAX_COMPLETION = 120
GREEDY = Sampling(max_new_tokens=MAX_COMPLETION, temperature=0.0, log_probs_mode=LogProbsMode.RAW)


def nothing(completions: list[Any], **_: Any) -> list[float]:
    """No reward: none is looked at."""
    return [0.0] * len(completions)


def config(tmp_path: Path) -> GRPOConfig:
    """The greediest settings that TRL takes."""
    return GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=MAX_COMPLETION,
        max_tool_calling_iterations=3,
        temperature=1.0,
        top_k=1,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        beta=0.0,
    )


def completions_of(trainer: GRPOTrainer, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What a trainer trains on, for rows of its dataset."""
    trainer.model.train()
    found: dict[str, Any] = trainer._generate_and_score_completions(rows)
    return found


def plain(ids: torch.Tensor, mask: torch.Tensor) -> list[list[int]]:
    """Rows of tokens without padding."""
    return [row[kept.bool()].tolist() for row, kept in zip(ids, mask, strict=True)]


def own_path(model: Path, tmp_path: Path) -> tuple[GRPOTrainer, dict[str, Any]]:
    """What TRL's own path makes of the tasks."""
    rows = [{"prompt": [{"role": "user", "content": question_of(at)}], "number": at} for at in range(COUNT)]
    trainer = GRPOTrainer(
        model=str(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=[nothing],
        environment_factory=NotesForTrl,
        train_dataset=Dataset.from_list(rows),
        args=config(tmp_path / "own"),
    )
    return trainer, completions_of(trainer, rows)


def test_tokens_masks_and_log_probs_are_those_of_trl(address: str, model_directory: Path, tmp_path: Path) -> None:
    trainer, expected = own_path(model_directory, tmp_path)
    rollout = CallsheetRollout(address, NoteTasks(COUNT), job_id=f"equal-{uuid.uuid4().hex[:8]}", sampling=GREEDY)
    ours = GRPOTrainer(
        model=str(model_directory),
        processing_class=AutoTokenizer.from_pretrained(model_directory),
        reward_funcs=[callsheet_score],
        rollout_func=rollout,
        train_dataset=Dataset.from_list(rollout.dataset_rows()),
        args=config(tmp_path / "ours"),
    )
    found = completions_of(ours, rollout.dataset_rows())
    for name in ("prompt", "completion"):
        assert plain(found[f"{name}_ids"], found[f"{name}_mask"]) == plain(
            expected[f"{name}_ids"], expected[f"{name}_mask"]
        )
    assert torch.equal(
        found["tool_mask"] * found["completion_mask"], expected["tool_mask"] * expected["completion_mask"]
    )
    # Not all alike: most call the tool, and its answers are in the completions.
    assert (expected["tool_mask"] == 0).any(dim=1).float().mean() > 0.5
    off = log_prob_difference(trainer, expected, found["sampling_per_token_logps"])
    assert off < 1e-4, f"log-probabilities differ by {off:.2e}"
    rollout.session.close_job()


def log_prob_difference(trainer: GRPOTrainer, expected: dict[str, Any], told: torch.Tensor) -> float:
    """By how much log-probabilities that engines told differ from those that TRL's loss uses."""
    ids = torch.cat([expected["prompt_ids"], expected["completion_ids"]], dim=1)
    mask = torch.cat([expected["prompt_mask"], expected["completion_mask"]], dim=1)
    with torch.no_grad():
        log_probs, *_ = trainer._get_per_token_logps_and_entropies(
            trainer.model.eval(), ids, mask, expected["completion_ids"].size(1), batch_size=20
        )
    trained = (expected["completion_mask"] * expected["tool_mask"]).bool()
    return float((log_probs - told)[trained].abs().max())
