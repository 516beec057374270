"""How users name models to host, and what is refused."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path

import pytest
from callsheet.managers.models.config_file import WeightsError
from callsheet.managers.reward.hosted.model_spec import ModelTask, parse_model, read_models
from callsheet.managers.reward.hosted.roster import same_canary
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.reward.hosted.weights_layout import read_layout


def test_a_model_of_the_command_line() -> None:
    spec = parse_model("judge=/models/judge,kind=judge,pinned=true,max_new_tokens=9")
    assert (spec.name, spec.directory, spec.kind) == ("judge", Path("/models/judge"), ModelTask.JUDGE)
    assert (spec.pinned, spec.max_new_tokens) == (True, 9)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("judge", "NAME=DIR"),
        ("judge=/m,kind", "OPTION=VALUE"),
        ("judge=/m,kind=oracle", "classify, teacher, judge"),
        ("judge=/m,size=3", "'size'"),
        ("judge=/m,pinned=maybe", "true or false"),
        ("judge=/m,gpus=3", "1, 2, 4, 8"),
        ("judge=/m,label=x", "whole number"),
        ("judge=/m,score_pattern=(", "regular expression"),
        ("judge=/m,score_pattern=x", "group"),
        ("=/m", "name"),
    ],
)
def test_what_is_no_model_is_refused_by_its_rule(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_model(text)


def test_a_file_of_models(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('[safety]\ndirectory = "safety"\nlabel = 1\n\n[teacher]\ndirectory = "/t"\nkind = "teacher"\n')
    safety, teacher = read_models(file)
    assert (safety.directory, safety.label) == (tmp_path / "safety", 1)
    assert teacher.kind is ModelTask.TEACHER
    file.write_text("[safety]\nlabel = 1\n")
    with pytest.raises(ValueError, match="directory"):
        read_models(file)
    file.write_text("[")
    with pytest.raises(ValueError, match="cannot be read"):
        read_models(file)


def test_settings_name_what_is_missing() -> None:
    models = (parse_model("a=/a"),)
    with pytest.raises(ValueError, match="memory_budget_mib"):
        HostedSettings(models=models)
    with pytest.raises(ValueError, match="'a': must be given once"):
        HostedSettings(models=models * 2, memory_budget_mib=1)
    for device in ("gpu", "cuda", "cpu,cuda:0"):
        with pytest.raises(ValueError, match="device"):
            HostedSettings(models=models, memory_budget_mib=1, device=device)


def write_weights(path: Path, header: Mapping[str, object], data: bytes) -> None:
    """A safetensors file."""
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded + data)


def test_the_layout_of_weights_in_shards(tmp_path: Path) -> None:
    one = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {"format": "pt"}}
    two = {"b": {"dtype": "F16", "shape": [1, 3], "data_offsets": [0, 6]}}
    write_weights(tmp_path / "1.safetensors", one, bytes(8))
    write_weights(tmp_path / "2.safetensors", two, bytes(6))
    index = {"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    layout = read_layout(tmp_path)
    assert [part.offset for part in layout.parts] == [0, 64]
    assert (layout.tensors["b"].offset, layout.tensors["b"].shape, layout.size) == (64, (1, 3), 128)
    write_weights(tmp_path / "2.safetensors", two, bytes(5))
    with pytest.raises(WeightsError, match="cut short"):
        read_layout(tmp_path)


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 16])
def test_what_are_no_weights_is_refused(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(WeightsError, match="safetensors"):
        read_layout(tmp_path)


def test_a_canary_tells_other_weights() -> None:
    stored = [1.0, -200.0]
    assert same_canary(None, stored)
    assert same_canary(stored, [1.00001, -200.001])
    assert not same_canary(stored, [1.001, -200.0])
    for strange in ([], [1.0], [1.0, float("nan")], [float("inf"), -200.0]):
        assert not same_canary(stored, strange)
    assert not same_canary(None, [float("nan")])
