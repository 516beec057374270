"""Adapters of PEFT in training: engines serve the model with them merged, and the model below them stays as it is."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl")

import torch
from callsheet.client.sync import SyncClient
from callsheet.integrations.trl import CallsheetRollout, PublishWeights
from callsheet.integrations.trl.publishing import unwrapped, whole_weights
from peft import LoraConfig, PrefixTuningConfig, TaskType, get_peft_model
from transformers import AutoModelForCausalLM

from tests.trainers.notes import NoteTasks
from tests.trainers.test_trl_rollout import config, trainer_of

PROMPT = torch.tensor([[1, 2, 3, 5, 8, 13]])


def lora(**changes: object) -> LoraConfig:
    return LoraConfig(r=4, lora_alpha=64, target_modules="all-linear", task_type=TaskType.CAUSAL_LM, **changes)


def by_turns(completions: list[Any], **_: Any) -> list[float]:
    """Scores that differ in each group, so that each step changes the adapters."""
    return [float(at % 2) for at in range(len(completions))]


@pytest.mark.parametrize("by", ["tensors", "directory"])
def test_it_trains_adapters_and_publishes_whole_models(
    address: str, model_directory: Path, tmp_path: Path, by: str
) -> None:
    job_id = f"adapters-{uuid.uuid4().hex[:8]}"
    rollout = CallsheetRollout(address, NoteTasks(), job_id=job_id)
    # The trainer's own answer proves each version: engines that lacked the adapters would not agree with it.
    publish = PublishWeights(rollout, close_job=False, directory=tmp_path / "saved" if by == "directory" else None)
    args = config(tmp_path, learning_rate=1e-2)
    trainer = trainer_of(
        model_directory, rollout, args, callbacks=[publish], peft_config=lora(), reward_funcs=[by_turns]
    )
    below = {name: each.detach().clone() for name, each in trainer.model.named_parameters() if "lora_" not in name}
    before = trainer.model(input_ids=PROMPT).logits.detach()
    trainer.train()
    for name, each in trainer.model.named_parameters():
        assert name not in below or torch.equal(each, below[name]), name
    assert not torch.allclose(trainer.model(input_ids=PROMPT).logits, before)
    with SyncClient(address) as client:
        (job,) = [status for status in client.jobs() if status.spec.job_id == job_id]
    assert job.policy_version == 3
    rollout.session.close_job()
    if by == "directory":
        assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == ["version-2", "version-3"]
        saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved" / "version-3")
        trainer.model.eval()
        with torch.no_grad():
            assert torch.allclose(saved(input_ids=PROMPT).logits, trainer.model(input_ids=PROMPT).logits, atol=1e-4)


def test_modules_that_are_trained_besides_are_in_what_is_published(model_directory: Path) -> None:
    model = get_peft_model(
        AutoModelForCausalLM.from_pretrained(model_directory), lora(modules_to_save=["norm"], init_lora_weights=False)
    )
    plain = AutoModelForCausalLM.from_pretrained(model_directory)
    with torch.no_grad():
        model.get_base_model().model.norm.modules_to_save["default"].weight.mul_(1.5)
    model.eval()
    with whole_weights(unwrapped(model)) as (_, weights):
        assert set(weights) == set(plain.state_dict())
        plain.load_state_dict(weights)
    with torch.no_grad():
        assert torch.allclose(plain(input_ids=PROMPT).logits, model(input_ids=PROMPT).logits, atol=1e-4)


def test_what_cannot_be_merged_is_refused_by_name(model_directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_directory)
    prefixed = get_peft_model(model, PrefixTuningConfig(task_type=TaskType.CAUSAL_LM, num_virtual_tokens=4))
    with pytest.raises(ValueError, match="cannot be merged"):
        unwrapped(prefixed)


def test_a_compiled_models_tensors_have_their_own_names(model_directory: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(model_directory)
    with whole_weights(unwrapped(torch.compile(model))) as (whole, weights):
        assert whole is model
        assert set(weights) == set(model.state_dict())
