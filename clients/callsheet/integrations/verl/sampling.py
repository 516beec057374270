"""How verl wants tokens sampled, as an engine is told. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Final

from callsheet.client import LogProbsMode, Sampling

_NO_EFFECT: Final[Mapping[str, tuple[Any, ...]]] = {
    "repetition_penalty": (None, 1.0),
    "presence_penalty": (None, 0.0),
    "frequency_penalty": (None, 0.0),
    "min_p": (None, 0.0),
    "n": (None, 1),
    # Log-probabilities always come.
    "logprobs": (None, False, True, 0, 1),
}
_TRANSLATED: Final = frozenset(
    {"temperature", "top_p", "top_k", "max_tokens", "max_new_tokens", "stop", "stop_token_ids", "log_probs_mode"}
)
# The others mean the same.
_ALIKE: Final = frozenset(each.name for each in fields(Sampling)) - _TRANSLATED
_TAKEN: Final = (_TRANSLATED | _ALIKE) - {"log_probs_mode"}


def sampling_of(params: Mapping[str, Any], most: int) -> Sampling:
    """Returns verl's sampling parameters as Callsheet's.

    Args:
        params: As an agent loop gets them.
        most: The most new tokens; a limit among the parameters may be smaller.

    Raises:
        ValueError: They ask for what engines are not asked for.
    """
    for name, value in params.items():
        if name not in _TAKEN and value not in _NO_EFFECT.get(name, (None,)):
            raise ValueError(f"{name} is {value!r} in verl's sampling parameters; Callsheet's engines have no such one")
    limits = [int(params[name]) for name in ("max_tokens", "max_new_tokens") if params.get(name)]
    temperature, top_k = float(params.get("temperature", 1.0)), int(params.get("top_k", 0))
    greedy = temperature == 0.0 or top_k == 1
    stop = params.get("stop") or ()
    return Sampling(
        max_new_tokens=min([most, *limits]),
        temperature=0.0 if greedy else temperature,
        top_p=1.0 if greedy else float(params.get("top_p", 1.0)),
        # verl says -1 for all.
        top_k=0 if greedy else max(0, top_k),
        stop=(stop,) if isinstance(stop, str) else tuple(stop),
        stop_token_ids=tuple(params.get("stop_token_ids") or ()),
        log_probs_mode=LogProbsMode.RAW if greedy else LogProbsMode.SAMPLED,
        **{name: params[name] for name in _ALIKE if params.get(name) is not None},
    )
