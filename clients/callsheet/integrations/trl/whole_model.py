"""The weights of a policy as engines serve them: of the whole model, with adapters merged into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

_PEFT_PREFIX: Final = "base_model.model."
_WRAPPERS: Final = ("module", "_orig_mod")
"""Attributes under which a model lies in what spreads it over processes, and in what `torch.compile` makes of it."""


def unwrapped(model: Any) -> Any:
    """Returns the model itself, adapters included, without what wraps it.

    Raises:
        ValueError: This process does not have all of its weights, or they cannot be merged with its adapter's.
    """
    while found := [name for name in _WRAPPERS if hasattr(model, name)]:
        model = getattr(model, found[0])
    for name, parameter in model.named_parameters():
        if hasattr(parameter, "ds_id") or hasattr(parameter, "full_tensor"):
            raise ValueError(f"{name} is spread over processes; PublishWeights takes whole models only")
    if has_adapters(model):
        _check_mergeable(model)
    return model


def has_adapters(model: Any) -> bool:
    """Whether it is a model of PEFT."""
    return hasattr(model, "peft_config")


@contextmanager
def whole_weights(model: Any) -> Iterator[tuple[Any, Mapping[str, Any]]]:
    """Gives a model and its tensors by the names that its configuration has; adapters are merged meanwhile.

    Merging and its reverse round. The weights below the adapters are copied before and put back after, so that the
    training goes on with the same numbers. The copies lie in the memory of the CPU.

    Args:
        model: As `unwrapped` returns it.
    """
    if not has_adapters(model):
        yield model, model.state_dict()
        return
    kept = [
        (parameter, parameter.detach().to("cpu", copy=True))
        for layer in _adapted_layers(model)
        for parameter in layer.get_base_layer().parameters(recurse=False)
    ]
    try:
        model.merge_adapter()
        yield model.get_base_model(), _plain_names(model)
    finally:
        model.unmerge_adapter()
        for parameter, value in kept:
            parameter.data.copy_(value)


def _adapted_layers(model: Any) -> list[Any]:
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer)]


def _check_mergeable(model: Any) -> None:
    kind = type(model.base_model).__name__
    if not hasattr(model.base_model, "merge_adapter"):
        raise ValueError(f"model has an adapter of {kind}, which cannot be merged; PublishWeights needs whole models")
    for layer in _adapted_layers(model):
        for name, parameter in layer.get_base_layer().named_parameters(recurse=False):
            if not parameter.is_floating_point():
                raise ValueError(
                    f"model: {name} of a {type(layer).__name__} is {parameter.dtype}; PublishWeights takes no "
                    "quantised models: engines could not load what it merges"
                )


def _plain_names(model: Any) -> dict[str, Any]:
    """Returns the tensors by the names that they have without an adapter; the adapter's own are left out."""
    found = {}
    active = tuple(f"modules_to_save.{name}." for name in model.active_adapters)
    for full, tensor in model.state_dict().items():
        name = full.removeprefix(_PEFT_PREFIX).replace(".base_layer.", ".")
        for saved in active:
            name = name.replace(saved, "")
        if model.base_model.prefix in name or "original_module." in name or "modules_to_save." in name:
            continue
        found[name] = tensor
    return found
