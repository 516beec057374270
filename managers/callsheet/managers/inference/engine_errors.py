"""Errors of engines: refusals and failures."""

from __future__ import annotations


class EngineError(Exception):
    """Anything an engine refuses or fails at.

    Attributes:
        reason: A stable word.
    """

    reason: str = "engine_error"


class EngineFailedError(EngineError):
    """The engine is dead; nothing it was asked will be answered."""

    reason = "engine_failed"


class EngineBusyError(EngineError):
    """The engine's queue of waiting requests is full."""

    reason = "engine_busy"


class NonFiniteError(EngineError):
    """The engine computed a log-probability that is no finite number; another engine may do better."""

    reason = "non_finite_logits"


class UnsupportedError(EngineError):
    """The engine lacks this capability."""


class RequestRefusedError(EngineError):
    """This request can never be served; another engine of the same model would refuse it too.

    Attributes:
        reason: A stable word: "no_tokens", "prompt_too_long", "token_out_of_vocabulary", "no_tokenizer",
            "duplicate_request", "script_exhausted".
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class WeightUpdateError(EngineError):
    """The weights could not be updated.

    Attributes:
        intact: Whether the engine certainly goes on with the weights that it had. Otherwise some of them may be new.
    """

    def __init__(self, message: str, *, intact: bool = False) -> None:
        super().__init__(message)
        self.intact = intact
