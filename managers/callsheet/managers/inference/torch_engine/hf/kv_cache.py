"""Keys and values of all sequences, and the passes that read and write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from callsheet.managers.inference.torch_engine.batch_runner import DecodeRow, KvChunk
from callsheet.managers.inference.torch_engine.extents import Extent
from callsheet.managers.inference.torch_engine.hf.attention import AttentionCall, AttentionPass, attend_over
from torch import Tensor
from typing_extensions import override


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer keeps of a token: `heads` keys of `key_width` numbers and as many values of `value_width`."""

    heads: int
    key_width: int
    value_width: int
    dtype: torch.dtype


class KvCache:
    """Room for a number of tokens in every layer.

    Attributes:
        scratch: A place that no extent has; padding goes there.
    """

    def __init__(self, layers: Mapping[int, LayerShape], tokens: int, device: torch.device) -> None:
        """Allocates it.

        Args:
            layers: Shape by index of the layer.
            tokens: How many there is room for.
            device: Where they are.
        """
        self.scratch = tokens
        # Layers of one shape share a tensor, so that a prefix is few copies: [layers, heads, tokens + 1, width].
        self._stores: list[Tensor] = []
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        for shape in dict.fromkeys(layers.values()):
            members = [layer for layer, own in layers.items() if own == shape]
            for views, width in ((self._keys, shape.key_width), (self._values, shape.value_width)):
                store = torch.zeros((len(members), shape.heads, tokens + 1, width), dtype=shape.dtype, device=device)
                self._stores.append(store)
                views.update(zip(members, store, strict=True))

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns keys and values of a layer, [heads, tokens + 1, width] each."""
        return self._keys[index], self._values[index]

    def read(self, start: int, end: int) -> KvChunk:
        """Returns views of places `start` to `end - 1`."""
        return tuple(store[:, :, start:end] for store in self._stores)

    def write(self, start: int, chunk: KvChunk) -> None:
        """Copies what `read` gave to the places from `start`."""
        for store, values in zip(self._stores, chunk, strict=True):
            store[:, :, start : start + values.shape[2]] = values


class PrefillPass(AttentionPass):
    """Rows are neighbouring tokens of one sequence."""

    def __init__(self, cache: KvCache, place: Extent, begin: int, end: int) -> None:
        self._cache, self._place, self._begin, self._end = cache, place, begin, end
        self._masks: dict[int | None, tuple[int, Tensor | None]] = {}

    @override
    def attend(self, call: AttentionCall) -> Tensor:
        keys, values = self._cache.layer(call.layer)
        start = self._place.start
        keys[:, start + self._begin : start + self._end] = call.key.transpose(0, 1)
        values[:, start + self._begin : start + self._end] = call.value.transpose(0, 1)
        first, mask = self._seen(call)
        seen = slice(start + first, start + self._end)
        mixed = attend_over(call, call.query.transpose(0, 1), keys[:, seen], values[:, seen], mask)
        return mixed.transpose(0, 1)

    def _seen(self, call: AttentionCall) -> tuple[int, Tensor | None]:
        """The first position that any row sees, and the mask from there on."""
        if call.window not in self._masks:
            first = 0 if call.window is None else max(0, self._begin - call.window + 1)
            rows = torch.arange(self._begin, self._end, device=call.query.device)[:, None]
            columns = torch.arange(first, self._end, device=call.query.device)
            mask = columns <= rows
            if call.window is not None:
                mask &= columns > rows - call.window
            self._masks[call.window] = first, mask if len(rows) > 1 else None
        return self._masks[call.window]


class DecodePass(AttentionPass):
    """Each row is the newest token of another sequence; rows after them are padding."""

    def __init__(self, cache: KvCache, rows: Sequence[DecodeRow], slots: Tensor) -> None:
        self._cache, self._rows, self._slots = cache, rows, slots

    @override
    def attend(self, call: AttentionCall) -> Tensor:
        keys, values = self._cache.layer(call.layer)
        keys.index_copy_(1, self._slots, call.key.transpose(0, 1))
        values.index_copy_(1, self._slots, call.value.transpose(0, 1))
        mixed = call.query.new_zeros((*call.query.shape[:2], values.shape[-1]))
        for index, row in enumerate(self._rows):
            end = row.place.start + row.position + 1
            first = row.place.start if call.window is None else max(row.place.start, end - call.window)
            query = call.query[index][:, None]
            mixed[index] = attend_over(call, query, keys[:, first:end], values[:, first:end], None)[:, 0]
        return mixed


class ProbePass(AttentionPass):
    """Rows are a whole sequence and nothing is kept; what each layer asks for is noted.

    Attributes:
        calls: The calls, by layer.
    """

    def __init__(self) -> None:
        self.calls: dict[int, AttentionCall] = {}

    @override
    def attend(self, call: AttentionCall) -> Tensor:
        self.calls[call.layer] = call
        rows = torch.arange(call.query.shape[0], device=call.query.device)
        mask = rows <= rows[:, None]
        by_head = [part.transpose(0, 1) for part in (call.query, call.key, call.value)]
        return attend_over(call, by_head[0], by_head[1], by_head[2], mask).transpose(0, 1)


class RowsApartPass(AttentionPass):
    """Rows see only themselves; for measuring whether a row's result depends on the other rows."""

    @override
    def attend(self, call: AttentionCall) -> Tensor:
        return call.value.repeat_interleave(call.groups, 1)
