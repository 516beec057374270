"""Trains the small model by GRPO, with rollouts by one of two backends. Writes its figures as JSON.

    python -m examples.training.train callsheet --address 127.0.0.1:7077 --model DIR --out FILE

Both backends need `callsheet up --model DIR`. The rollouts of "async" go on while the trainer trains.
"""

from __future__ import annotations

import argparse
import json
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from callsheet.environments.seats import SeatSettings
from callsheet.integrations.columns import EXCLUDED, FAILURE, REPLACED
from callsheet.integrations.trl import CallsheetRollout, PublishWeights, callsheet_score
from datasets import Dataset
from transformers import AutoTokenizer, set_seed
from trl import GRPOConfig, GRPOTrainer

from examples.training.async_training import async_trainer, batches_of
from examples.training.filters import FilterTasks
from examples.training.measuring import PARTS, Measured, MeasureSteps
from examples.training.work import Load

GROUP = 8
GROUPS = 2
MAX_COMPLETION = 96


def settings(given: argparse.Namespace) -> dict[str, Any]:
    """Returns the settings of both backends."""
    return {
        "output_dir": str(given.out.with_suffix(".trl")),
        "per_device_train_batch_size": GROUP * GROUPS,
        "num_generations": GROUP,
        "max_completion_length": MAX_COMPLETION,
        "max_steps": given.steps,
        "learning_rate": given.learning_rate,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
        "seed": given.seed,
    }


class WatchedRollout:
    """Notes the time and the rewards of a rollout."""

    def __init__(self, rollout: Callable[..., dict[str, list[Any]]], measured: Measured) -> None:
        self._rollout = rollout
        self._measured = measured

    def __call__(self, prompts: list[Any], trainer: GRPOTrainer) -> dict[str, list[Any]]:
        """Returns what the rollout returns."""
        began = time.monotonic()
        columns = self._rollout(prompts, trainer)
        wall_s = time.monotonic() - began
        means = {part: sum(columns[f"callsheet_{part}_s"]) / len(prompts) for part in PARTS}
        self._measured.rollout(wall_s, means)
        self._measured.note(
            failed=sum(each is not None for each in columns[FAILURE]),
            excluded=sum(columns[EXCLUDED]),
            replaced=sum(columns[REPLACED]),
        )
        return columns


def trainer_of(given: argparse.Namespace, load: Load, measured: Measured) -> Any:
    """Returns the trainer of a backend."""
    tasks = FilterTasks(load)
    if given.backend == "async":
        return async_trainer(given, tasks, settings(given), measured)
    shared: dict[str, Any] = {
        "model": str(given.model),
        "processing_class": AutoTokenizer.from_pretrained(given.model),
        "args": GRPOConfig(**settings(given), beta=0.0),
    }
    rows = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": task.task_id}], "number": task.data["number"]}
            for task in tasks.tasks()
        ]
    )
    measuring = MeasureSteps(measured)
    rollout = CallsheetRollout(
        given.address,
        tasks,
        job_id=f"filters-{uuid.uuid4().hex[:8]}",
        seats=SeatSettings(max_replacements=GROUP, spare=given.spare),
    )
    watched = WatchedRollout(rollout, measured)
    callbacks = [PublishWeights(rollout), measuring]
    return GRPOTrainer(
        **shared, train_dataset=rows, rollout_func=watched, reward_funcs=[callsheet_score], callbacks=callbacks
    )


def train(given: argparse.Namespace, load: Load) -> dict[str, Any]:
    """Trains; returns the figures."""
    measured = Measured()
    trainer = trainer_of(given, load, measured)
    began = time.monotonic()
    trainer.train()
    rewards = [entry["reward"] for entry in trainer.state.log_history if "reward" in entry]
    steps = [{**step, "reward": reward} for step, reward in zip(measured.steps, rewards, strict=True)]
    return {
        "backend": given.backend,
        **batches_of(trainer.state.log_history),
        "seconds": time.monotonic() - began,
        "steps": steps,
    }


def main() -> None:
    """Trains as the options say."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("backend", choices=["callsheet", "async"])
    parser.add_argument("--address", default="127.0.0.1:7077", help="the scheduler's")
    parser.add_argument("--model", type=Path, required=True, help="directory of the model")
    parser.add_argument("--out", type=Path, required=True, help="file for the figures")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--learning-rate", type=float, default=5e-4)
    parser.add_argument("--spare", type=int, default=0, help="spare trajectories of each group, for callsheet")
    for name in ("work-s", "slow", "hanging", "crashing", "limit-s"):
        default = getattr(Load(), name.replace("-", "_"))
        parser.add_argument(f"--{name}", type=float, default=default, help="see examples/training/work.py")
    given = parser.parse_args()
    load = Load(**{each.name: getattr(given, each.name) for each in fields(Load)})
    torch.set_num_threads(1)
    set_seed(given.seed)
    found = {**train(given, load), "seed": given.seed, "load": asdict(load)}
    given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
