"""Reads models of transformers from directories."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from callsheet.managers.models.config_file import WeightsError
from callsheet.managers.models.hf_directory import read_model_directory
from callsheet.managers.models.weights import shapes
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

# What does not change what a model computes, or what a trainer may leave otherwise than it found it.
_WITHOUT_EFFECT = frozenset(
    {"architectures", "dtype", "torch_dtype", "transformers_version", "use_cache", "initializer_range", "auto_map"}
)


def load_pretrained(directory: Path, dtype: torch.dtype) -> PreTrainedModel:
    """Loads a causal language model, on the CPU.

    Raises:
        WeightsError: The directory does not hold one that is whole; the message names the architecture.
    """
    described = read_model_directory(directory)
    try:
        with _quiet_transformers():
            loaded: Any = AutoModelForCausalLM.from_pretrained(
                directory, dtype=dtype, local_files_only=True, trust_remote_code=False, output_loading_info=True
            )
    except Exception as error:  # A loader that is fed garbage raises anything.
        first_line = (str(error).splitlines() or [""])[0]
        raise WeightsError(f"{directory}: {described.architecture} cannot be loaded ({first_line})") from error
    model: PreTrainedModel
    model, report = loaded
    # Transformers fills what is missing with random numbers.
    lacking = sorted({*report["missing_keys"], *(entry[0] for entry in report["mismatched_keys"])})
    if lacking:
        raise WeightsError(
            f"{directory}: {len(lacking)} tensors of {type(model).__name__} are missing or misshapen "
            f"({', '.join(lacking[:5])}); is it a causal language model?"
        )
    model.requires_grad_(False)
    return model


def read_model_weights(directory: Path, running: PreTrainedModel) -> dict[str, Tensor]:
    """Returns all weights of a directory that holds the same model as the running one.

    The files are read as at the start, by transformers: names on disk may differ from those in memory.

    Raises:
        WeightsError: They cannot be used.
    """
    model = load_pretrained(directory, running.dtype)
    differing = _differences(model.config.to_dict(), running.config.to_dict())
    if differing or shapes(model) != shapes(running):
        named = ", ".join(differing) or "the shape of its tensors"
        raise WeightsError(f"{directory}: its config.json is not that of the running model ({named})")
    return model.state_dict()


def named_as_in_memory(state: Mapping[str, Tensor], running: PreTrainedModel) -> dict[str, Tensor]:
    """Returns tensors with the names of the running model's state_dict(), some of which may be left out.

    Files may have other names, and parts of what is one tensor in memory, such as single experts. Transformers knows
    how to join them, and does it in a model of its own.

    Raises:
        WeightsError: Some are none of the model's, or parts are missing.
    """
    try:
        with _quiet_transformers():
            loaded: Any = type(running).from_pretrained(
                None, config=running.config, state_dict=dict(state), dtype=running.dtype, output_loading_info=True
            )
    except Exception as error:  # A loader that is fed garbage raises anything.
        first_line = (str(error).splitlines() or [""])[0]
        raise WeightsError(f"the tensors do not make up {type(running).__name__} ({first_line})") from error
    model, report = loaded
    if strangers := sorted(report["unexpected_keys"]):
        raise WeightsError(f"{len(strangers)} tensors are none of the running model's ({', '.join(strangers[:5])})")
    whole: dict[str, Tensor] = model.state_dict()
    # Tied tensors are one: where it was not given, its other name is not told as missing.
    random = {whole[name].data_ptr() for name in report["missing_keys"] if name in whole}
    return {name: values for name, values in whole.items() if values.data_ptr() not in random}


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Names of fields that differ and have an effect."""
    names = {
        name
        for name in {*one, *other}
        if not (name.startswith("_") or name in _WITHOUT_EFFECT or name.endswith(("_token_id", "dropout")))
    }
    return sorted(name for name in names if one.get(name) != other.get(name))


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Keeps bars of progress and advice for programmers from the log; what is wrong is raised."""
    bars, level = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
