"""A model without weights, whose tensors are bound to an arena and taken away again."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from callsheet.managers.models.config_file import WeightsError
from callsheet.managers.reward.hosted.arena import WeightsArena, supported
from callsheet.managers.reward.hosted.model_spec import ModelTask
from callsheet.managers.reward.hosted.weights_layout import TensorPlace, WeightsLayout, read_layout
from safetensors.torch import save_file
from torch import nn
from transformers.initialization import no_init_weights

_CLASSES: dict[ModelTask, Any] = {
    ModelTask.CLASSIFY: transformers.AutoModelForSequenceClassification,
    ModelTask.TEACHER: transformers.AutoModelForCausalLM,
    ModelTask.JUDGE: transformers.AutoModelForCausalLM,
}
_TORCH_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


class ModelSkeleton:
    """The modules of a model; its weights are where the layout says, or nowhere.

    Attributes:
        model: The transformers model. It can compute only while weights are bound.
        config: Its configuration.
        layout: Where its tensors are in its files and in its place.
    """

    def __init__(self, directory: Path, task: ModelTask, parked: Path) -> None:
        """Builds the modules, and makes a parked copy of weights that do not have the modules' names.

        Args:
            directory: Of the model.
            task: What it answers.
            parked: Where such a copy goes; what is there already is taken.

        Raises:
            WeightsError: The directory's weights are not those of such a model.
        """
        self.config = transformers.AutoConfig.from_pretrained(directory, local_files_only=True)
        with no_init_weights():
            self.model = _CLASSES[task].from_config(self.config).eval()
        self.model.tie_weights()
        self._sites = _sites(self.model)
        layout = read_layout(parked if parked.exists() else directory)
        found = self._bindings(layout)
        if found is None:
            _convert(directory, task, parked)
            layout = read_layout(parked)
            found = self._bindings(layout)
        if found is None:
            raise WeightsError(f"{directory}: the weights are not those of {type(self.model).__name__}")
        self.layout: WeightsLayout = layout
        self._bound = found
        self.unbind()

    def bind(self, arena: WeightsArena, offset: int) -> None:
        """Gives every tensor its place in an arena."""
        for sites, place in self._bound:
            tensor = arena.tensor(place, offset)
            parameter = nn.Parameter(tensor, requires_grad=False)
            for module, name, is_buffer in sites:
                if is_buffer:
                    module._buffers[name] = tensor
                else:
                    module._parameters[name] = parameter
        for module in self.model.modules():
            for name in module._non_persistent_buffers_set:
                if (buffer := module._buffers.get(name)) is not None:
                    module._buffers[name] = buffer.to(arena.device)

    def unbind(self) -> None:
        """Takes every tensor away."""
        for sites, _ in self._bound:
            for module, name, is_buffer in sites:
                if is_buffer:
                    module._buffers[name] = torch.empty(0)
                else:
                    module._parameters[name] = nn.Parameter(torch.empty(0), requires_grad=False)

    def _bindings(self, layout: WeightsLayout) -> list[tuple[Sequence[_Site], TensorPlace]] | None:
        """Each tensor's places in the modules and in the layout; None if they do not fit each other."""
        if not supported(layout):
            return None
        found: list[tuple[Sequence[_Site], TensorPlace]] = []
        for names, sites, tensor in self._sites:
            place = next((layout.tensors[name] for name in names if name in layout.tensors), None)
            if place is None or place.shape != tuple(tensor.shape):
                return None
            if tensor.is_floating_point() and _TORCH_DTYPES.get(place.dtype) != tensor.dtype:
                return None
            found.append((sites, place))
        return found


_Site = tuple[nn.Module, str, bool]


def _sites(model: nn.Module) -> list[tuple[list[str], list[_Site], torch.Tensor]]:
    """All tensors that files hold, each with its names and sites: tied ones have several."""
    found: dict[int, tuple[list[str], list[_Site], torch.Tensor]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        persistent = {
            name: buffer for name, buffer in module._buffers.items() if name not in module._non_persistent_buffers_set
        }
        for name, tensor in (*module._parameters.items(), *persistent.items()):
            if tensor is not None:
                names, sites, _ = found.setdefault(id(tensor), ([], [], tensor))
                names.append(f"{prefix}.{name}" if prefix else name)
                sites.append((module, name, name in persistent))
    return list(found.values())


def _convert(directory: Path, task: ModelTask, parked: Path) -> None:
    """Loads a model as transformers does, whatever its files are like, and writes its tensors by their own names."""
    model, loaded = _CLASSES[task].from_pretrained(directory, local_files_only=True, output_loading_info=True)
    if missing := sorted(loaded["missing_keys"]):
        raise WeightsError(f"{directory}: {missing[0]} is missing: {type(model).__name__} needs it")
    seen: dict[int, str] = {}
    tensors = {}
    for names, _, tensor in _sites(model):
        if id(tensor) not in seen:
            seen[id(tensor)] = names[0]
            tensors[names[0]] = tensor.detach().contiguous()
    making = parked.with_name(f"{parked.name}.making")
    shutil.rmtree(making, ignore_errors=True)
    making.mkdir(parents=True)
    save_file(tensors, making / "model.safetensors")
    making.rename(parked)
