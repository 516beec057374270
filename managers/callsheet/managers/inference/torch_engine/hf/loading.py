"""Loads a user's model into the torch engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from callsheet.managers.inference.torch_engine.hf.runner import HfRunner, ServedBounds
from callsheet.managers.inference.torch_engine.hf.text import load_tokenizer, token_bytes_of
from callsheet.managers.inference.torch_engine.hf.weights import load_pretrained
from callsheet.managers.inference.torch_engine.sequence import TokenBytes
from callsheet.managers.inference.torch_engine.settings import Dtype, served_context, served_dtype
from callsheet.managers.models.config_file import WeightsError
from callsheet.managers.models.hf_directory import end_tokens, read_model_directory


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A model that is ready to be served.

    Attributes:
        runner: The model.
        token_bytes: What a token adds to the text; None without a tokenizer.
        end_tokens: The model's own tokens that end generation.
    """

    runner: HfRunner
    token_bytes: TokenBytes | None
    end_tokens: frozenset[int]


def load_hf_model(
    directory: Path,
    *,
    kv_cache_tokens: int,
    device: str,
    dtype: Dtype = Dtype.AUTO,
) -> LoadedModel:
    """Loads a model with its tokenizer.

    Args:
        directory: Of the model, in the format of Hugging Face.
        kv_cache_tokens: Tokens of all sequences together, which bounds the context.
        device: "cpu", "cuda" or any other torch device.
        dtype: In which to compute.

    Raises:
        WeightsError: The directory does not hold a model that can be served.
    """
    described = read_model_directory(directory)
    chosen: torch.dtype | None = getattr(torch, served_dtype(dtype, device, described.dtype), None)
    if not isinstance(chosen, torch.dtype) or not chosen.is_floating_point:
        raise WeightsError(f"{directory}: its dtype {described.dtype!r} is none of torch's; choose another one")
    model = load_pretrained(directory, chosen)
    model.to(torch.device(device))  # type: ignore[arg-type]
    embeddings = model.get_input_embeddings()
    vocabulary = getattr(embeddings, "num_embeddings", None) or model.config.get_text_config().vocab_size
    bounds = ServedBounds(vocabulary, served_context(described.context_length, kv_cache_tokens))
    runner = HfRunner(model, bounds)
    tokenizer = load_tokenizer(directory) if described.tokenizer else None
    ends = end_tokens(directory)
    if not ends and tokenizer is not None and tokenizer.eos_token_id is not None:
        ends = frozenset({tokenizer.eos_token_id})
    return LoadedModel(runner, None if tokenizer is None else token_bytes_of(tokenizer), ends)
