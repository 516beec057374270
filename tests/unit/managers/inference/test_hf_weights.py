"""New weights for a user's model: names on disk, updates that are given up, and the memory of an engine that sleeps."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
import torch
from callsheet.managers.inference.driver import UpdateMode, WeightUpdate, WeightUpdateError
from callsheet.managers.inference.torch_engine.driver import TorchEngineDriver
from callsheet.managers.inference.torch_engine.engine import TorchEngine
from callsheet.managers.inference.torch_engine.hf.loading import load_hf_model
from callsheet.managers.inference.torch_engine.hf.weights import named_as_in_memory
from callsheet.managers.inference.torch_engine.weight_sources import WeightSources
from callsheet.managers.inference.weights import GroupWeights, TensorSpec, TensorWeights
from callsheet.managers.models.config_file import WeightsError
from safetensors.torch import load_file, save_file

from tests.support.hf_models import model_directory, save_model, seeded_model
from tests.support.ports import free_port
from tests.support.torch_models import prompt, request


def test_experts_that_are_single_on_disk_are_one_tensor_in_memory(tmp_path: Path) -> None:
    saved = save_model(tmp_path, seeded_model("mixtral", 1, num_local_experts=4))
    running = seeded_model("mixtral", 0, num_local_experts=4)
    wanted = seeded_model("mixtral", 1, num_local_experts=4).state_dict()
    disk = load_file(saved / "model.safetensors")
    half = {name: values for name, values in disk.items() if ".layers.0." in name}
    named = named_as_in_memory(half, running)
    assert set(named) == {name for name in wanted if ".layers.0." in name}
    assert all(torch.equal(values, wanted[name]) for name, values in named.items())
    with pytest.raises(WeightsError, match="stranger"):
        named_as_in_memory(half | {"stranger": torch.zeros(2)}, running)
    with pytest.raises(WeightsError, match="do not make up MixtralForCausalLM"):
        named_as_in_memory({name: values for name, values in half.items() if "experts.3" not in name}, running)


def test_of_tied_tensors_only_what_was_given_is_taken() -> None:
    running = seeded_model("llama", 0, tie_word_embeddings=True)
    norm = {"model.norm.weight": torch.ones(128)}
    assert set(named_as_in_memory(norm, running)) == {"model.norm.weight"}


@pytest.mark.anyio
async def test_an_update_that_is_given_up_leaves_the_old_weights(tmp_path: Path) -> None:
    loaded = load_hf_model(model_directory(), kv_cache_tokens=512, device="cpu")
    driver = TorchEngineDriver(TorchEngine(loaded.runner), WeightSources(loaded.runner), kv_cache_tokens=512)
    before = await driver.generate(request("a", prompt(9)))
    specs = (TensorSpec("model.norm.weight", "float32", (128,)),)
    nobody = GroupWeights("127.0.0.1", free_port(), "weights", 2, 1, "gloo", specs)
    with anyio.move_on_after(0.05):
        await driver.update_weights(WeightUpdate(nobody, 1, UpdateMode.KEEP, timeout_s=1.0))
    after = await driver.generate(request("a", prompt(9)))
    assert (after.token_ids, after.log_probs, after.version_spans) == (
        before.token_ids,
        before.log_probs,
        before.version_spans,
    )
    save_file({"model.norm.weight": torch.ones(64)}, tmp_path / "misshapen")
    with pytest.raises(WeightUpdateError, match="instead of") as refused:
        await driver.update_weights(WeightUpdate(TensorWeights(tmp_path / "misshapen"), 1, UpdateMode.KEEP))
    assert refused.value.intact
    await driver.close()
