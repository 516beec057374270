"""Finds how a model can be run, and proves it: what it computes with a cache must equal its own pass without one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import structlog
import torch
from callsheet.managers.inference.torch_engine.batch_runner import ALIGNMENT, BatchRunner, DecodeRow
from callsheet.managers.inference.torch_engine.extents import Extent
from callsheet.managers.inference.torch_engine.hf.attention import ATTENTION_NAME, attending
from callsheet.managers.inference.torch_engine.hf.kv_cache import LayerShape, ProbePass
from callsheet.managers.inference.torch_engine.hf.packed_runner import PackedRunner, SequenceRunner, ServedBounds
from callsheet.managers.models.config_file import WeightsError
from torch import Tensor
from transformers import PreTrainedModel

log = structlog.get_logger(__name__)

_PROBE_TOKENS = 24
_CHUNK = 9
_OTHER_TOKENS = 5
_PLAIN_LAYERS = frozenset({"full_attention", "sliding_attention"})
# Rotary embeddings of these kinds turn all rows of a pass by the longest of its positions.
_ROPE_OF_A_WHOLE_PASS = frozenset({"dynamic", "longrope"})


class UnfitError(Exception):
    """A model cannot be run in a certain way; the message says why."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Two sequences, and the logits that the model itself gives for them.

    Attributes:
        tolerance: By how much logits may differ, as a part of the largest one.
    """

    long: Tensor
    other: Tensor
    long_logits: Tensor
    other_logits: Tensor
    tolerance: float

    def compare(self, found: Tensor, expected: Tensor) -> None:
        """Compares logits.

        Raises:
            UnfitError: They differ by more than rounding.
        """
        off = float((found - expected).abs().max())
        scale = max(1.0, float(expected.abs().max()))
        if not off <= self.tolerance * scale:
            raise UnfitError(f"its logits with a cache are off by {off:.3g} of {scale:.3g}")


def fit_runner(
    model: PreTrainedModel, bounds: ServedBounds, *, kv_cache_tokens: int, batch_invariant: bool = True
) -> BatchRunner:
    """Returns a runner that was seen to compute what the model does: packed if that is right, else one by one.

    Args:
        model: On its device.
        bounds: Which sequences are to be served.
        kv_cache_tokens: Capacity of the KV cache.
        batch_invariant: Whether a token must not depend on what else is in the batch.

    Raises:
        WeightsError: The model cannot be run either way; the message names its architecture.
        ValueError: The capacity breaks its rule, or the cache does not fit the device.
    """
    name, own_attention = type(model).__name__, model.config._attn_implementation
    with torch.inference_mode():
        reference = _reference(model, bounds.vocabulary_size)
        try:
            runner = _packed(model, bounds, kv_cache_tokens, reference)
            runner.batch_invariant = batch_invariant
            return runner
        except torch.OutOfMemoryError as error:
            raise ValueError(f"kv_cache_tokens: {kv_cache_tokens} do not fit the device beside {name}") from error
        except Exception as error:  # An architecture may fail anywhere when it is run as it was not written for.
            log.warning("model runs one sequence at a time", architecture=name, reason=f"{error}")
        model.set_attn_implementation(own_attention)
        try:
            alone = SequenceRunner(model, bounds, kv_cache_tokens=kv_cache_tokens)
            _prove(alone, reference)
        except Exception as error:
            raise WeightsError(f"{name} cannot be served by the torch engine ({error})") from error
        return alone


def _packed(model: PreTrainedModel, bounds: ServedBounds, capacity: int, reference: Reference) -> PackedRunner:
    if (kind := _rope_of_a_whole_pass(model, bounds)) is not None:
        raise UnfitError(f"its rotary embedding ({kind}) depends on the longest sequence of a pass")
    model.set_attn_implementation(ATTENTION_NAME)
    layers = _probe(model, reference)
    runner = PackedRunner(model, layers, bounds, kv_cache_tokens=capacity)
    runner.tile_rows = 2
    _prove(runner, reference)
    runner.tile_rows = 1
    return runner


def _reference(model: PreTrainedModel, vocabulary_size: int) -> Reference:
    seed = torch.Generator().manual_seed(0)
    long, other = (
        torch.randint(vocabulary_size, (count,), generator=seed).to(model.device)
        for count in (_PROBE_TOKENS, _OTHER_TOKENS)
    )
    logits = [model(input_ids=tokens[None], use_cache=False).logits[0].float() for tokens in (long, other)]
    # Half precision rounds to some thousandths at each layer; a wrong mask or position changes logits altogether.
    tolerance = 1e-3 if model.dtype is torch.float32 else 5e-2
    return Reference(long, other, logits[0], logits[1], tolerance)


def _probe(model: PreTrainedModel, reference: Reference) -> Mapping[int, LayerShape]:
    """Returns what each layer keeps of a token, once all of them are known to leave their attention to us.

    Raises:
        UnfitError: One does not.
    """
    probe = ProbePass()
    positions = torch.arange(_PROBE_TOKENS, device=model.device)
    with attending(probe):
        model(input_ids=reference.long[None], position_ids=positions[None], use_cache=False)
    config = model.config.get_text_config()
    expected = set(range(config.num_hidden_layers))
    if set(probe.calls) != expected:
        raise UnfitError(
            f"{len(expected - set(probe.calls))} of {len(expected)} layers have no attention of the usual kind"
        )
    kinds = getattr(config, "layer_types", None) or []
    if strange := sorted(set(kinds) - _PLAIN_LAYERS):
        raise UnfitError(f"it has layers of kind {', '.join(strange)}")
    for layer, kind in enumerate(kinds):
        if (kind == "sliding_attention") != (probe.calls[layer].window is not None):
            raise UnfitError(f"layer {layer} is of kind {kind} and has a window of {probe.calls[layer].window}")
    return {
        layer: LayerShape(call.key.shape[1], call.key.shape[2], call.value.shape[2], call.key.dtype)
        for layer, call in sorted(probe.calls.items())
    }


def _prove(runner: BatchRunner, reference: Reference) -> None:
    """Runs the two sequences in chunks and steps, side by side where the runner can.

    Raises:
        UnfitError: The logits are not those of the reference.
    """
    long, other = reference.long.tolist(), reference.other.tolist()
    places = [_room(runner, len(long)), _room(runner, len(other))]
    prefilled = len(long) - 3
    try:
        for begin in range(0, prefilled, prefilled if runner.whole_prompts else _CHUNK):
            end = prefilled if runner.whole_prompts else min(begin + _CHUNK, prefilled)
            reference.compare(runner.prefill(long[begin:end], begin, places[0])[0], reference.long_logits[end - 1])
        reference.compare(runner.prefill(other[:-1], 0, places[1])[0], reference.other_logits[-2])
        rows = [
            (DecodeRow(long[prefilled], prefilled, places[0]), reference.long_logits[prefilled]),
            (DecodeRow(other[-1], len(other) - 1, places[1]), reference.other_logits[-1]),
        ]
        for begin in range(0, 2, runner.tile_rows):
            tile = rows[begin : begin + runner.tile_rows]
            logits = runner.decode([row for row, _ in tile])
            for found, (_, expected) in zip(logits, tile, strict=False):
                reference.compare(found, expected)
        last = DecodeRow(long[prefilled + 1], prefilled + 1, places[0])
        reference.compare(runner.decode([last])[0], reference.long_logits[prefilled + 1])
    finally:
        for place in places:
            runner.release(place)


def _room(runner: BatchRunner, tokens: int) -> Extent:
    place = runner.extents.allocate(tokens)
    if place is None:
        raise ValueError(f"kv_cache_tokens: {runner.extents.capacity}: must be at least {3 * ALIGNMENT}")
    return place


def _rope_of_a_whole_pass(model: PreTrainedModel, bounds: ServedBounds) -> str | None:
    """The kind of a rotary embedding that would depend on what else is in the batch."""
    config = model.config.get_text_config()
    for entry in _mappings(getattr(config, "rope_parameters", None)):
        kind = entry.get("rope_type", entry.get("type"))
        usual = entry.get("original_max_position_embeddings") or getattr(config, "max_position_embeddings", None) or 0
        if kind in _ROPE_OF_A_WHOLE_PASS and bounds.context_length > usual:
            return str(kind)
    return None


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, Mapping):
        yield value
        for inner in value.values():
            yield from _mappings(inner)
