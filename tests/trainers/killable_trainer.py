"""A training run as a program, to be killed. Arguments: the address, the job, the model, the log and the grace in s."""

from __future__ import annotations

import json
import sys
import tempfile
from typing import Any

from callsheet.integrations.trl import CallsheetRollout, JobSettings, callsheet_score
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tests.trainers.notes import NoteTasks


def main(address: str, job_id: str, model: str, log: str, grace_s: str) -> None:
    """Trains one step of eight completions, and writes what its rollout returned as one line."""
    tasks = NoteTasks(4, wait_s=0.7, log=log)
    rollout = CallsheetRollout(address, tasks, job_id=job_id, job=JobSettings(grace_s=float(grace_s)))

    def told(prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        columns = rollout(prompts, trainer)
        sys.stdout.write(json.dumps(columns) + "\n")
        return columns

    with tempfile.TemporaryDirectory() as place:
        trainer = GRPOTrainer(
            model=model,
            processing_class=AutoTokenizer.from_pretrained(model),
            reward_funcs=[callsheet_score],
            rollout_func=told,
            train_dataset=Dataset.from_list(rollout.dataset_rows()),
            args=GRPOConfig(
                output_dir=place,
                per_device_train_batch_size=8,
                num_generations=4,
                max_completion_length=160,
                max_steps=1,
                save_strategy="no",
                report_to="none",
                use_cpu=True,
                bf16=False,
                disable_tqdm=True,
                seed=7,
            ),
        )
        trainer.train()


if __name__ == "__main__":
    main(*sys.argv[1:])
