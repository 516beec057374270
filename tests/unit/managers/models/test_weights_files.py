from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from callsheet.managers.models.config_file import WeightsError, check_weights, read_config
from callsheet.managers.models.safetensors_files import INDEX_FILE, read_tensor_files
from callsheet.managers.models.weights import read_state, shapes

from tests.support.torch_models import SMALL, save_weights, small_model


class Evil:
    """Unpickling it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (str(self.path),)


def test_round_trip(tmp_path: Path) -> None:
    model = small_model(5)
    save_weights(model, SMALL, tmp_path / "new")
    assert read_config(tmp_path / "new") == SMALL
    state = read_state(tmp_path / "new", shapes(model))
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("content", "rule"),
    [
        ("{", "is not JSON"),
        ("[]", "must be one object"),
        (json.dumps({"width": 64, "experts": 8}), "unknown keys \\['experts'\\]"),
        (json.dumps({"layers": 0}), "layers is 0"),
    ],
)
def test_bad_config(tmp_path: Path, content: str, rule: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(WeightsError, match=rule):
        read_config(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"config\.json: is missing"):
        read_config(tmp_path)
    with pytest.raises(WeightsError, match=r"weights\.pt: cannot be read"):
        read_state(tmp_path, {})


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/hostname", "a/b.safetensors", "./x.safetensors", "../"]
)
def test_an_index_names_files_beside_it_alone(tmp_path: Path, name: str) -> None:
    model = tmp_path / "model"
    (model / "a").mkdir(parents=True)
    for file in (tmp_path / "outside.safetensors", model / "a" / "b.safetensors"):
        file.write_bytes(b"")
    (model / INDEX_FILE).write_text(json.dumps({"weight_map": {"x": name, "y": name}}))
    with pytest.raises(WeightsError, match="is no name of a file beside it"):
        read_tensor_files(model)


def test_damaged_state(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").write_bytes(b"not a state file")
    with pytest.raises(WeightsError, match="cannot be read as a torch state file"):
        read_state(tmp_path, {})


def test_wrong_shapes_are_named(tmp_path: Path) -> None:
    save_weights(small_model(), SMALL, tmp_path)
    expected = shapes(small_model()) | {"head.weight": (2, 64)}
    with pytest.raises(WeightsError, match=r"1 tensors do not fit.*head\.weight: \(259, 64\) instead of \(2, 64\)"):
        read_state(tmp_path, expected)


def test_state_file_cannot_run_code(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    torch.save({"weight": Evil(victim)}, tmp_path / "weights.pt")
    with pytest.raises(WeightsError):
        read_state(tmp_path, {})
    assert not victim.exists()


def test_weights_are_known_to_be_there_before_they_are_read(tmp_path: Path) -> None:
    save_weights(small_model(5), SMALL, tmp_path)
    assert check_weights(tmp_path) == SMALL
    (tmp_path / "weights.pt").unlink()
    with pytest.raises(WeightsError, match=r"weights\.pt: is missing"):
        check_weights(tmp_path)
