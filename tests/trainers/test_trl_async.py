"""TRL's AsyncGRPOTrainer with Callsheet's rollout worker and weight transfer.

Its first step is an oracle: the policy that sampled is the one that trains, so ratio is 1 and KL 0 if tokens, masks,
log-probabilities and weights are right all the way.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("trl")

from callsheet.client.sync import SyncClient
from callsheet.integrations.trl import CallsheetRollout, CallsheetRolloutWorker, CallsheetWeights
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer

from examples.training.async_training import train_on_cpus
from tests.trainers.notes import NoteTasks


def settings_of(output: Path) -> AsyncGRPOConfig:
    """Three steps of two groups."""
    return AsyncGRPOConfig(
        output_dir=str(output),
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


def test_the_first_step_has_ratio_1_and_kl_0(
    address: str, model_directory: Path, tmp_path: Path, note: Callable[[str], None]
) -> None:
    job_id = f"async-{uuid.uuid4().hex[:8]}"
    args = settings_of(tmp_path)
    train_on_cpus()
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    rollout = CallsheetRollout(address, NoteTasks(8), job_id=job_id)
    weights = CallsheetWeights(rollout)
    worker = CallsheetRolloutWorker(rollout, weights, tokenizer, args, num_generations=4, at_least=4, at_most=8)
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
    note(f"AsyncGRPO's first step: ratio - 1 is {first['ratio'] - 1.0:.1e}, KL {first['kl']:.1e}")
    assert abs(first["ratio"] - 1.0) < 1e-4, first
    assert abs(first["kl"]) < 1e-6, first
    assert others
    logged = [entry for entry in trainer.state.log_history if "callsheet/episodes_total" in entry]
    assert logged
    assert all(entry["callsheet/excluded_total"] == 0.0 for entry in logged)
    taken = [entry for entry in trainer.state.log_history if "callsheet/staleness_max" in entry]
    assert taken
    assert all(4 <= entry["callsheet/batch_trajectories"] <= 8 for entry in taken)
    for name in ("callsheet/staleness_max", "sample/staleness_max"):
        assert all(entry.get(name, 0.0) <= 4 for entry in trainer.state.log_history), name
    # What training began with, and each step's.
    assert weights.version == 4
    with SyncClient(address) as client:
        assert [status for status in client.jobs() if status.spec.job_id == job_id] == []


def started(
    address: str, model_directory: Path, args: AsyncGRPOConfig, job_id: str
) -> tuple[CallsheetRolloutWorker, Callable[[int], None]]:
    """Returns a worker under way, and what publishes the trainer's next version."""
    rollout = CallsheetRollout(address, NoteTasks(8), job_id=job_id)
    weights = CallsheetWeights(rollout)
    tokenizer = AutoTokenizer.from_pretrained(model_directory)
    worker = CallsheetRolloutWorker(rollout, weights, tokenizer, args, num_generations=4, at_most=4)
    model = AutoModelForCausalLM.from_pretrained(model_directory)

    def publish(version: int) -> None:
        weights.send_weights(iter(model.named_parameters()))
        worker.update_model_version(version)

    weights.init_weight_transfer()
    publish(1)
    worker.start()
    return worker, publish


def test_what_was_not_trained_on_comes_again_to_the_next_trainer(
    address: str, model_directory: Path, tmp_path: Path
) -> None:
    job_id = f"async-{uuid.uuid4().hex[:8]}"
    args = settings_of(tmp_path)
    worker, publish = started(address, model_directory, args, job_id)

    def taken(count: int) -> set[tuple[int, ...]]:
        return {tuple(worker.rollout_buffer.get(timeout=60.0).input_ids) for _ in range(count)}

    trained = taken(4)
    publish(2)
    untrained = taken(4)
    publish(3)
    with SyncClient(address) as client:
        deadline = time.monotonic() + 30.0
        while client.job(job_id).status().buffer.counts.get("trained") != 4:
            assert time.monotonic() < deadline
    # The trainer is gone, and closes nothing.
    assert worker._running is not None
    worker._running.cancel()
    assert worker._ended.wait(30.0)
    session = worker._rollout.session
    session.run(session.client.close())
    worker, _ = started(address, model_directory, args, job_id)
    again = taken(8)
    worker.stop()
    assert untrained <= again
    assert not trained & again
