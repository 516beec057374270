"""One request on its way through the engine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
from callsheet.managers.inference.driver import FinishReason, GenerateRequest, Generation, VersionSpan

TokenBytes = Callable[[int], bytes]
"""Function that returns the bytes that one token adds to the text."""


class StopTexts:
    """Watches the text of a sequence's new tokens for any of the texts that end it.

    Texts are compared as UTF-8, so one that began in the middle of a character cannot match.
    """

    def __init__(self, texts: tuple[str, ...], token_bytes: TokenBytes) -> None:
        """Begins with no text."""
        self._stops = [text.encode("utf-8", errors="surrogatepass") for text in texts]
        self._longest = max(map(len, self._stops))
        self._token_bytes = token_bytes
        self._tail = b""

    def complete(self, token_id: int) -> bool:
        """Adds a token; whether the text contains one of the texts now."""
        text = self._tail + self._token_bytes(token_id)
        # Whatever a later token completes begins in the last bytes.
        self._tail = text[len(text) - min(len(text), self._longest - 1) :]
        return any(stop in text for stop in self._stops)


@dataclass(slots=True, eq=False)
class Sequence:
    """State of one request. What the compute thread makes of it, the event loop reads.

    Attributes:
        request: What was asked.
        limit: The most new tokens: what was asked, cut to the context.
        seed: Of the request's own random numbers, given or drawn.
        stream: The request's own random numbers.
        stop_texts: The texts that end it; None if there are none.
        token_bytes: What a token adds to the text; None where that is not known.
        end_tokens: Tokens that end it: those of the request, and the model's own unless the request ignores them.
        state: The model's, of its tokens; None before its first turn.
        weights: How often the engine's weights had been replaced when it began.
        prefilled: Prompt tokens that the state has.
        spans: Version spans so far.
        ended: Why it is over; None while it is not.
        asked_at: When it came, in monotonic seconds.
        admitted_at: When it had a place; None before.
        settled: Set once it has a place, or will have none.
    """

    request: GenerateRequest
    limit: int
    seed: int
    stream: random.Random
    stop_texts: StopTexts | None = None
    token_bytes: TokenBytes | None = None
    end_tokens: frozenset[int] = frozenset()
    state: Any = None
    weights: int = 0
    prefilled: int = 0
    cached_tokens: int = 0
    cpu_s: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    ended: FinishReason | None = None
    asked_at: float = field(default_factory=time.monotonic)
    admitted_at: float | None = None
    settled: anyio.Event = field(default_factory=anyio.Event)

    @property
    def most_tokens(self) -> int:
        """Tokens of the prompt and the longest output."""
        return len(self.request.prompt_token_ids) + self.limit

    def append(self, token_id: int, log_prob: float, version: int) -> None:
        """Adds an output token made by a policy version, and ends the sequence where it does."""
        index = len(self.token_ids)
        self.token_ids.append(token_id)
        self.log_probs.append(log_prob)
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = VersionSpan(version, self.spans[-1].begin, index + 1)
        else:
            self.spans.append(VersionSpan(version, index, index + 1))
        completes = self.stop_texts is not None and self.stop_texts.complete(token_id)
        if completes or token_id in self.end_tokens:
            self.end(FinishReason.STOP)
        elif index + 1 >= self.limit:
            self.end(FinishReason.LENGTH)

    def end(self, reason: FinishReason) -> None:
        """Ends it with the tokens that it has; an end before this one stays."""
        self.ended = self.ended or reason

    def generation(self) -> Generation:
        """Returns the generation that the sequence produced."""
        assert self.ended is not None
        text = None
        if self.token_bytes is not None:
            text = b"".join(map(self.token_bytes, self.token_ids)).decode("utf-8", errors="replace")
        return Generation(
            token_ids=tuple(self.token_ids),
            log_probs=tuple(self.log_probs),
            finish_reason=self.ended,
            version_spans=tuple(self.spans),
            seed=self.seed,
            cached_tokens=self.cached_tokens,
            cpu_s=self.cpu_s,
            text=text,
            waited_s=(self.admitted_at or time.monotonic()) - self.asked_at,
        )
