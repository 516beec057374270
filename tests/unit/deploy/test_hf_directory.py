"""What the files of a user's model say, and what is told of one that is not whole."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from callsheet.deploy.checks import describe_own_model
from callsheet.deploy.command_lines import role_arguments
from callsheet.deploy.roles import Role
from callsheet.deploy.stack import check_machine
from callsheet.deploy.stack_settings import StackSettings
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.managers.inference.torch_engine.hf.loading import load_hf_model
from callsheet.managers.inference.torch_engine.kind import torch_engine
from callsheet.managers.inference.torch_engine.settings import Dtype, TorchSettings, served_context, served_dtype
from callsheet.managers.models.config_file import WeightsError
from callsheet.managers.models.hf_directory import end_tokens, read_model_directory

from tests.support.hf_models import byte_level_tokenizer, model_directory, save_model, seeded_model


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A model that a test may damage."""
    return Path(shutil.copytree(model_directory(), tmp_path / "mine"))


def test_what_a_model_is(copy: Path) -> None:
    found = read_model_directory(copy)
    parameters = sum(values.numel() for values in seeded_model().state_dict().values())
    assert (found.architecture, found.dtype, found.context_length) == ("Qwen2ForCausalLM", "float32", 16_384)
    assert (found.parameters, found.tokenizer, found.chat_template) == (parameters, True, True)
    assert found.summary("float32") == (
        "mine (Qwen2ForCausalLM, 0.3 million parameters, float32, context of 16384 tokens, with a chat template)"
    )
    (copy / "chat_template.jinja").unlink()
    assert "without a chat template" in read_model_directory(copy).summary("float32")
    (copy / "tokenizer.json").unlink()
    assert "without a tokenizer" in read_model_directory(copy).summary("float32")


def cut(directory: Path) -> None:
    """Loses the last bytes of the tensors."""
    file = directory / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


def only_pickles(directory: Path) -> None:
    """As older models are saved."""
    (directory / "model.safetensors").rename(directory / "pytorch_model.bin")


def lacks_a_shard(directory: Path) -> None:
    """Names a file that was not copied."""
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda directory: (directory / "config.json").unlink(), r"config\.json: is missing"),
    (lambda directory: (directory / "config.json").write_text("{"), "is not JSON"),
    (lambda directory: (directory / "config.json").write_text("[]"), "holds list"),
    (lambda directory: (directory / "config.json").write_text("{}"), "has neither architectures nor model_type"),
    (lambda directory: (directory / "model.safetensors").unlink(), r"model\.safetensors: is missing"),
    (lambda directory: (directory / "model.safetensors").write_bytes(b"torn"), "is not a file of safetensors"),
    (only_pickles, r"pytorch_model\.bin is another format"),
    (cut, "it is cut short"),
    (lacks_a_shard, r"model-00001-of-00002\.safetensors: is missing"),
    (lambda directory: (directory / "weights.pt").write_bytes(b""), "give it as weights"),
    (shutil.rmtree, "is no directory"),
]


@pytest.mark.parametrize(("damage", "told"), DAMAGES, ids=[told for _, told in DAMAGES])
def test_what_is_missing_is_named_before_anything_is_loaded(
    copy: Path, damage: Callable[[Path], object], told: str
) -> None:
    damage(copy)
    with pytest.raises(WeightsError, match=told):
        torch_engine(TorchSettings(), InferenceSettings(model=str(copy)))


def test_a_model_of_an_unknown_kind_is_refused_with_its_name(copy: Path) -> None:
    fields = json.loads((copy / "config.json").read_text()) | {"architectures": ["MyLM"], "model_type": "mine"}
    (copy / "config.json").write_text(json.dumps(fields))
    with pytest.raises(WeightsError, match="MyLM cannot be loaded"):
        load_hf_model(copy, kv_cache_tokens=512, device="cpu")


def test_tensors_that_are_missing_are_not_made_up(copy: Path) -> None:
    fields = json.loads((copy / "config.json").read_text()) | {"num_hidden_layers": 3}
    (copy / "config.json").write_text(json.dumps(fields | {"layer_types": ["full_attention"] * 3}))
    with pytest.raises(WeightsError, match="tensors of Qwen2ForCausalLM are missing"):
        load_hf_model(copy, kv_cache_tokens=512, device="cpu")


def test_end_tokens_come_from_the_generation_config_then_the_config(tmp_path: Path) -> None:
    end = byte_level_tokenizer().eos_token_id
    assert end_tokens(save_model(tmp_path, seeded_model(), eos=True)) == {end}
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    assert end_tokens(tmp_path) == {1, 2}
    (tmp_path / "generation_config.json").unlink()
    assert end_tokens(tmp_path) == frozenset()


def test_a_directory_is_served_as_the_policy_and_a_name_names_the_service(copy: Path) -> None:
    own = InferenceSettings(model=str(copy))
    assert (own.service, own.model_directory) == ("policy", copy)
    named = InferenceSettings(model="judge")
    assert (named.service, named.model_directory) == ("judge", None)
    with pytest.raises(ValueError, match="weights must not be given with"):
        InferenceSettings(model=str(copy), weights=copy)


def test_dtype_and_context_that_are_served() -> None:
    assert served_dtype(Dtype.AUTO, "cpu", "bfloat16") == "float32"
    assert served_dtype(Dtype.AUTO, "cuda:0", "bfloat16") == "bfloat16"
    assert served_dtype(Dtype.FLOAT16, "cpu", "bfloat16") == "float16"
    assert served_context(131_072, 32_768) == 32_768
    assert served_context(2048, 32_768) == 2048
    assert served_context(None, 512) == 512


def test_a_stack_tells_what_it_will_serve_and_only_the_engine_is_told_to(copy: Path, tmp_path: Path) -> None:
    own = StackSettings(tmp_path, given={"model": str(copy)})
    assert (describe_own_model(own) or "").startswith("the service policy is mine (Qwen2ForCausalLM")
    inference = role_arguments(Role.INFERENCE, own, address="127.0.0.1:7077", cores=4)
    assert inference[inference.index("--model") + 1] == str(copy)
    assert "--load-at-first-use" not in inference
    reward = role_arguments("reward", own, address="127.0.0.1:7077", cores=4)
    assert "--model" not in reward
    assert "--load-at-first-use" in reward
    assert describe_own_model(StackSettings(tmp_path)) is None
    with pytest.raises(ValueError, match=r"model: .*nowhere: is no directory"):
        describe_own_model(StackSettings(tmp_path, given={"model": str(tmp_path / "nowhere")}))
    with pytest.raises(ValueError, match=r"model: .* is for a manager of inference, which is none of managers"):
        check_machine(StackSettings(tmp_path, given={"model": str(copy)}, managers=("sandbox",)))
