"""The attention function that models of transformers are given: it leaves keys, values and masks to the pass under way.

A model calls it in each layer with the rows of one forward pass, packed as one sequence. Which row belongs to which
sequence, and where that one's keys and values are, only the pass knows. It is looked up by thread, as not every
architecture hands keyword arguments of its caller down to its attention.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F  # noqa: N812 - the name torch's own documentation uses
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION_NAME = "callsheet_batch"
"""Under this name transformers knows the function."""

# What says nothing about the result: it is about training, about output, or about what the pass knows better.
_WITHOUT_EFFECT = frozenset(
    {
        "cache_position",
        "cu_seq_lens_k",
        "cu_seq_lens_q",
        "is_causal",
        "max_length_k",
        "max_length_q",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)


class UnknownAttentionError(Exception):
    """A model asks its attention for something that is not known here."""


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One layer's attention over the rows of a pass.

    Attributes:
        layer: Its index.
        query: [rows, heads, width].
        key: [rows, key heads, width].
        value: [rows, key heads, value width].
        scale: Factor of the scores; None is one over the root of the width.
        window: A token sees itself and `window - 1` tokens before it; None sees all before it.
        softcap: Bound that scores are bent under by a hyperbolic tangent; None bends nothing.
        sinks: [heads], scores of a place that has no value; None has no such place.
    """

    layer: int
    query: Tensor
    key: Tensor
    value: Tensor
    scale: float | None
    window: int | None
    softcap: float | None
    sinks: Tensor | None

    @property
    def groups(self) -> int:
        """Query heads that share one head of keys."""
        return self.query.shape[1] // self.key.shape[1]


class AttentionPass(ABC):
    """One forward pass over rows of sequences."""

    @abstractmethod
    def attend(self, call: AttentionCall) -> Tensor:
        """Returns the context, [rows, heads, value width]."""


_current = threading.local()


@contextmanager
def attending(by: AttentionPass) -> Iterator[None]:
    """Has a pass answer the attention of models that run in this thread meanwhile."""
    _current.by = by
    try:
        yield
    finally:
        _current.by = None


def _attention(  # noqa: PLR0917 - transformers calls it so
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """As transformers calls it: tensors are [1, heads, rows, width], the result [1, rows, heads, width]."""
    unknown = sorted(name for name, given in others.items() if given is not None and name not in _WITHOUT_EFFECT)
    if unknown or attention_mask is not None or query.shape[0] != 1:
        asked = unknown or ["a mask of its own"]
        raise UnknownAttentionError(f"its attention takes {', '.join(asked)}")
    call = AttentionCall(
        layer=cast(int, module.layer_idx),
        query=query[0].transpose(0, 1),
        key=key[0].transpose(0, 1),
        value=value[0].transpose(0, 1),
        scale=scaling,
        window=sliding_window or None,
        softcap=softcap or None,
        sinks=s_aux,
    )
    by: AttentionPass = _current.by
    return by.attend(call)[None], None


AttentionInterface.register(ATTENTION_NAME, _attention)


def attend_over(call: AttentionCall, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Mixes values for the queries of one sequence.

    Args:
        call: The layer's.
        query: [heads, queries, width].
        keys: [key heads, keys, width].
        values: [key heads, keys, value width].
        mask: [queries, keys], true where a query sees a key; None where each sees all.

    Returns:
        [heads, queries, value width].
    """
    if call.softcap is not None or call.sinks is not None:
        return _plainly(call, query, keys, values, mask)
    if call.groups > 1 and query.shape[1] == 1:
        # The heads that share keys are queries of one head: nothing is copied.
        grouped = query.view(keys.shape[0], call.groups, -1)
        wide = mask.expand(call.groups, -1) if mask is not None else None
        mixed = F.scaled_dot_product_attention(grouped[None], keys[None], values[None], wide, scale=call.scale)
        return mixed[0].reshape(query.shape[0], 1, -1)
    return F.scaled_dot_product_attention(
        query[None], keys[None], values[None], mask, scale=call.scale, enable_gqa=call.groups > 1
    )[0]


def _plainly(call: AttentionCall, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """As transformers' eager attention does it, which is the reference of models that bend their scores."""
    scale = call.scale if call.scale is not None else query.shape[-1] ** -0.5
    keys, values = keys.repeat_interleave(call.groups, 0), values.repeat_interleave(call.groups, 0)
    scores = torch.matmul(query, keys.transpose(1, 2)) * scale
    if call.softcap is not None:
        scores = torch.tanh(scores / call.softcap) * call.softcap
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    if call.sinks is not None:
        sinks = call.sinks.to(scores.dtype).view(-1, 1, 1).expand(-1, scores.shape[1], -1)
        weights = torch.softmax(torch.cat([scores, sinks], dim=-1).float(), dim=-1)[..., :-1]
    else:
        weights = torch.softmax(scores.float(), dim=-1)
    return torch.matmul(weights.to(values.dtype), values)
