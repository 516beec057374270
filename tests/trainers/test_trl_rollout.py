"""TRL's GRPOTrainer with rollouts of Callsheet: it trains, weights flow, failures are told."""

from __future__ import annotations

import math
import pickle
import re
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

from callsheet.client import Job, Outcome, RewardResult, SandboxFile
from callsheet.client.sync import SyncClient
from callsheet.integrations.trl import CallsheetReward, CallsheetRollout, PublishWeights, callsheet_score
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from tests.support.grader_package import MODULE
from tests.trainers.notes import NoteTasks, question_of
from tests.trainers.stacks import kill_sandboxes_once_begun


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
        reward_funcs=others.pop("reward_funcs", [callsheet_score]),
        rollout_func=rollout,
        train_dataset=Dataset.from_list(rollout.dataset_rows()),
        args=args,
        **others,
    )


def watched(trainer: GRPOTrainer, rollout: CallsheetRollout) -> list[dict[str, list[Any]]]:
    """Has a trainer's rollouts kept; returns where."""
    seen: list[dict[str, list[Any]]] = []

    def rolled_out(prompts: list[Any], of: GRPOTrainer) -> dict[str, list[Any]]:
        seen.append(rollout(prompts, of))
        return seen[-1]

    trainer.rollout_func = rolled_out
    return seen


def test_it_trains_with_weights_that_flow(address: str, model_directory: Path, tmp_path: Path) -> None:
    job_id = f"train-{uuid.uuid4().hex[:8]}"
    rollout = pickle.loads(pickle.dumps(CallsheetRollout(address, NoteTasks(), job_id=job_id)))
    publish = PublishWeights(rollout, close_job=False)
    trainer = trainer_of(model_directory, rollout, config(tmp_path), callbacks=[publish])
    seen = watched(trainer, rollout)
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


def test_what_is_lost_is_replaced_and_never_a_reward_of_zero(
    address: str, model_directory: Path, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    rollout = CallsheetRollout(address, NoteTasks(8, wait_s=1.0, log=str(log)), job_id=f"lost-{uuid.uuid4().hex[:8]}")
    trainer = trainer_of(model_directory, rollout, config(tmp_path))
    trainer.model.train()
    killer = threading.Thread(target=kill_sandboxes_once_begun, args=(log,))
    killer.start()
    rows = [row for row in rollout.dataset_rows()[:2] for _ in range(4)]
    found: dict[str, list[Any]] = {}

    def kept(prompts: list[Any], of: GRPOTrainer) -> dict[str, list[Any]]:
        found.update(rollout(prompts, of))
        return found

    trainer.rollout_func = kept
    trainer._generate_and_score_completions(rows)
    killer.join()
    assert sum(found["callsheet_replaced"]) > 0
    for score, failure, excluded, mask in zip(
        found["callsheet_score"],
        found["callsheet_failure"],
        found["callsheet_excluded"],
        found["env_mask"],
        strict=True,
    ):
        assert excluded == (score is None) == (failure is not None and failure.startswith("INFRA/"))
        assert not (excluded and any(mask))
    rollout.session.close_job()


async def counts_letters(job: Job, completion: str, row: Mapping[str, Any]) -> Outcome[RewardResult]:
    """Scores by a command in a sandbox of its own."""
    files = [SandboxFile("said", completion.encode())]
    return await job.reward_tests(f"test $(wc -c <said) -ge {row['least']}", files=files)


def test_reward_actions_beside_generation_of_trl(address: str, model_directory: Path, tmp_path: Path) -> None:
    job_id = f"reward-{uuid.uuid4().hex[:8]}"
    reward = pickle.loads(pickle.dumps(CallsheetReward(address, counts_letters, job_id=job_id, name="letters")))
    function = CallsheetReward(address, f"{MODULE}:trl_letters", job_id=job_id)
    rows = [{"prompt": question_of(at), "least": 0} for at in range(4)]
    trainer = GRPOTrainer(
        model=str(model_directory),
        processing_class=AutoTokenizer.from_pretrained(model_directory),
        reward_funcs=[reward, function],
        train_dataset=Dataset.from_list(rows),
        args=config(tmp_path, max_completion_length=16, max_steps=1),
    )
    trainer.train()
    (logged,) = [entry for entry in trainer.state.log_history if "rewards/letters/mean" in entry]
    assert logged["rewards/letters/mean"] == 1.0
    assert logged["letters/episodes"] == 8.0
    assert logged["letters/excluded"] == 0.0
    assert logged["rewards/trl_letters/mean"] == 1.0
    assert (logged["trl_letters/episodes"], logged["trl_letters/failed"]) == (8.0, 0.0)


def test_the_example_runs(address: str, model_directory: Path, tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "trl_grpo.py"
    command = [sys.executable, str(example), str(model_directory), address]
    done = subprocess.run(command, cwd=tmp_path, check=True, timeout=300, stdout=subprocess.PIPE, text=True)
    # There is something to learn: siblings have unlike rewards.
    assert any(float(each) > 0 for each in re.findall(r"'reward_std': '?([\d.e+-]+)", done.stdout)), done.stdout
