"""TRL's GRPOTrainer with rollouts of Callsheet: it trains, weights flow, failures are told."""

from __future__ import annotations

import math
import pickle
import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from callsheet.client.sync import SyncClient
from callsheet.integrations.trl import CallsheetRollout, PublishWeights, callsheet_score
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tests.trainers.notes import NoteTasks


def config(tmp_path: Path, **changes: Any) -> GRPOConfig:
    """Settings for a few steps of eight completions on a CPU."""
    settings: dict[str, Any] = {
        "output_dir": str(tmp_path / "out"),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 160,
        "max_steps": 2,
        "learning_rate": 1e-4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "disable_tqdm": True,
        "beta": 0.0,
        "seed": 7,
    }
    return GRPOConfig(**{**settings, **changes})


def trainer_of(model: Path, rollout: CallsheetRollout, args: GRPOConfig, **others: Any) -> GRPOTrainer:
    """A trainer whose rollouts and scores are Callsheet's."""
    return GRPOTrainer(
        model=str(model),
        processing_class=AutoTokenizer.from_pretrained(model),
        reward_funcs=[callsheet_score],
        rollout_func=rollout,
        train_dataset=Dataset.from_list(rollout.dataset_rows()),
        args=args,
        **others,
    )


def test_it_trains_with_weights_that_flow(address: str, model_directory: Path, tmp_path: Path) -> None:
    job_id = f"train-{uuid.uuid4().hex[:8]}"
    rollout = pickle.loads(pickle.dumps(CallsheetRollout(address, NoteTasks(), job_id=job_id)))
    publish = PublishWeights(rollout, close_job=False)
    trainer = trainer_of(model_directory, rollout, config(tmp_path), callbacks=[publish])
    seen: list[dict[str, list[Any]]] = []

    def watched(prompts: list[Any], of: GRPOTrainer) -> dict[str, list[Any]]:
        seen.append(rollout(prompts, of))
        return seen[-1]

    trainer.rollout_func = watched
    trainer.train()
    logged = [entry for entry in trainer.state.log_history if "callsheet/excluded" in entry]
    assert len(logged) == len(seen) == 2
    assert [entry["callsheet/excluded"] for entry in logged] == [0.0, 0.0]
    assert all(math.isfinite(entry["rewards/callsheet_score/mean"]) for entry in logged)
    for columns in seen:
        assert {len(column) for column in columns.values()} == {8}
        for completion, log_probs, mask in zip(
            columns["completion_ids"], columns["logprobs"], columns["env_mask"], strict=True
        ):
            assert len(completion) == len(log_probs) == len(mask)
            assert mask[0] == 1
            assert all(value <= 0.0 for value in log_probs)
    # Some read a note, so that its text is in the completion without a loss.
    assert any(0 in mask for columns in seen for mask in columns["env_mask"])
    with SyncClient(address) as client:
        (job,) = [status for status in client.jobs() if status.spec.job_id == job_id]
        # What training began with, and the weights of two steps.
        assert job.policy_version == 3
        assert job.open_trajectories == 0
    rollout.session.close_job()
