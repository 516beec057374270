"""Brings new weights to the engine as tensors in memory, before anything of the running ones is touched."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from callsheet.managers.inference.driver import WeightUpdateError
from callsheet.managers.inference.torch_engine.batch_runner import BatchRunner
from callsheet.managers.inference.torch_engine.transfer_group import TransferGroups
from callsheet.managers.inference.weights import DiskWeights, GroupWeights, TensorWeights, WeightSource
from callsheet.managers.models.config_file import WeightsError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor


class WeightSources:
    """Reads weights of all kinds of sources. Its methods block, and may be called from any thread."""

    def __init__(self, runner: BatchRunner) -> None:
        """Notes the shapes of a model that is awake."""
        self._runner = runner
        self._shapes = dict(runner.state_shapes())
        self._groups = TransferGroups()

    def read(self, source: WeightSource, timeout_s: float) -> Mapping[str, Tensor]:
        """Returns tensors by name, checked against the running model.

        Args:
            source: Where they are.
            timeout_s: The longest wait for a group.

        Raises:
            WeightUpdateError: They cannot be used, or did not come in time; the running weights are as they were.
        """
        try:
            match source:
                case DiskWeights(location):
                    return self._runner.read_weights(Path(location.removeprefix("file://")))
                case TensorWeights(path):
                    state = self._loaded(path)
                    check_tensors({name: tuple(value.shape) for name, value in state.items()}, self._shapes, f"{path}")
                    return state
                case GroupWeights(group_name=name, tensors=tensors):
                    check_tensors({each.name: each.shape for each in tensors}, self._shapes, f"group {name}")
                    return self._groups.receive(source, timeout_s)
        except WeightsError as error:
            raise WeightUpdateError(str(error), intact=True) from error

    def _loaded(self, path: Path) -> Mapping[str, Tensor]:
        state = _load(path)
        if all(name in self._shapes for name in state):
            return state
        try:
            return self._runner.named_as_in_memory(state)
        except WeightsError as error:
            raise WeightsError(f"{path}: {error}") from error

    def close(self) -> None:
        """Leaves all groups."""
        self._groups.close()


def check_tensors(given: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...]], place: str) -> None:
    """Refuses tensors that the running model does not have; some may be left out.

    Args:
        given: Shape by name.
        expected: Shape by name, of the running model.
        place: Where they come from, for the message.

    Raises:
        WeightsError: There are none, or names or shapes are not the model's.
    """
    if not given:
        raise WeightsError(f"{place}: has no tensors; there must be at least one")
    unknown = sorted(name for name in given if name not in expected)
    if unknown:
        raise WeightsError(
            f"{place}: {len(unknown)} of {len(given)} tensors are none of the running model's "
            f"({', '.join(unknown[:5])}); they must be named as in its state_dict()"
        )
    misshapen = [
        f"{name}: {shape} instead of {expected[name]}" for name, shape in given.items() if shape != expected[name]
    ]
    if misshapen:
        raise WeightsError(f"{place}: {len(misshapen)} tensors do not fit the model ({', '.join(misshapen[:5])})")


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise WeightsError(f"{path}: cannot be read as a file of safetensors ({error})") from error
