"""Requests to servers: those that none could serve, and what a refusal means."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from callsheet.managers.inference.driver import (
    EngineBusyError,
    EngineCapabilities,
    EngineError,
    EngineLimits,
    FinishReason,
    GenerateRequest,
    NonFiniteError,
    RequestRefusedError,
    Sampling,
)
from callsheet.managers.inference.http_engine.client import HttpAnswer
from callsheet.managers.models.completions import blames_account, blames_length

_FINISH = frozenset(reason.value for reason in FinishReason)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBounds:
    """Bounds of the requests that a server takes.

    Attributes:
        limits: Its limits.
        longest_prompt: The most tokens of a prompt; None if only the context bounds it.
        vocabulary: Token ids are below it; None if that is not known. Some servers die of an id beyond it.
        stop_texts: The most stop texts; 0 if the server has no tokenizer.
    """

    limits: EngineLimits
    longest_prompt: int | None = None
    vocabulary: int | None = None
    stop_texts: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundServer(ABC):
    """A server as it was found.

    Attributes:
        bounds: What requests it takes.
        identity: Tells one start of the server from another; empty where nothing does.
        label: What it calls its weights; None where it does not say.
        model: Where the weights are that it serves; empty where it does not say.
    """

    bounds: RequestBounds
    identity: str
    label: str | None = None
    model: str = ""

    @property
    @abstractmethod
    def abilities(self) -> EngineCapabilities:
        """Returns the abilities of the server."""


def check_request(request: GenerateRequest, bounds: RequestBounds) -> None:
    """Refuses a request that the server can never serve.

    Raises:
        RequestRefusedError: Its reason names the rule.
    """
    tokens = request.prompt_token_ids
    if not tokens:
        raise RequestRefusedError("no_tokens", "prompt_token_ids is empty; it must have at least one token")
    end = bounds.vocabulary
    for place, token in enumerate(tokens):
        if token < 0 or (end is not None and token >= end):
            rule = "at least 0" if end is None else f"0 to {end - 1}"
            message = f"prompt_token_ids[{place}] is {token}; it must be {rule}"
            raise RequestRefusedError("token_out_of_vocabulary", message)
    longest = [each for each in (bounds.longest_prompt, bounds.limits.context_length) if each is not None]
    if longest and len(tokens) >= min(longest):
        message = f"prompt_token_ids has {len(tokens)} tokens; it must have fewer than {min(longest)}"
        raise RequestRefusedError("prompt_too_long", message)
    if request.sampling.stop and not bounds.stop_texts:
        raise RequestRefusedError("no_tokenizer", "stop: this engine has no tokenizer; give stop_token_ids instead")
    if len(request.sampling.stop) > bounds.stop_texts:
        message = f"stop has {len(request.sampling.stop)} texts; this engine takes at most {bounds.stop_texts}"
        raise RequestRefusedError("invalid_sampling", message)


def new_tokens(request: GenerateRequest, limits: EngineLimits) -> int:
    """The most new tokens to ask for: what the context leaves, as servers refuse more."""
    wanted = request.sampling.max_new_tokens
    if limits.context_length is None:
        return wanted
    return max(min(wanted, limits.context_length - len(request.prompt_token_ids)), 1)


def sampling_parameters(sampling: Sampling) -> dict[str, Any]:
    """Returns the parameters that all servers call by the same names.

    Values that are the server's default are left out because some servers refuse unknown fields.
    """
    optional = {
        "stop_token_ids": sorted(sampling.stop_token_ids),
        "stop": list(sampling.stop),
        "ignore_eos": sampling.ignore_eos,
    }
    asked = {name: value for name, value in optional.items() if value}
    return {"temperature": sampling.temperature, "top_p": sampling.top_p, **asked}


def error_of(answer: HttpAnswer) -> EngineError:
    """Returns the error that an unsuccessful answer means for a request."""
    if blames_length(answer.status, answer.message):
        return RequestRefusedError("prompt_too_long", answer.message)
    if blames_account(answer.status, answer.content):
        return EngineError(answer.message)
    if answer.status in (429, 503):
        return EngineBusyError(answer.message)
    if answer.status in (400, 413, 422):
        if "duplicate" in answer.message.lower():
            return RequestRefusedError("duplicate_request", answer.message)
        return RequestRefusedError("invalid_sampling", answer.message)
    return EngineError(answer.message)


def finish_reason_of(word: object) -> FinishReason:
    """Reads why a request ended.

    Raises:
        EngineError: It is no reason that a request can end with.
    """
    if word not in _FINISH:
        raise EngineError(f"finish_reason is {word!r}; it must be one of {sorted(_FINISH)}")
    return FinishReason(word)


def finite(log_probs: Sequence[float | None]) -> tuple[float, ...]:
    """Log-probabilities that are numbers.

    Raises:
        NonFiniteError: One is not, as of a model whose output overflows.
    """
    checked = tuple(each for each in log_probs if each is not None and math.isfinite(each))
    if len(checked) != len(log_probs):
        raise NonFiniteError("the engine told a log-probability that is no finite number")
    return checked
