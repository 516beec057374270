"""One request on its way through the engine."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from callsheet.managers.inference.driver import FinishReason, GenerateRequest, Generation, VersionSpan
from callsheet.managers.inference.torch_engine.extents import Extent

TokenBytes = Callable[[int], bytes]
"""What one token adds to the text."""


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
    """State of one request.

    Attributes:
        request: What was asked.
        tag: The caller's handle, given back with the result.
        limit: The most new tokens: what was asked, cut to the context.
        seed: Of the request's own random numbers, given or drawn.
        stream: The request's own random numbers.
        chunk_keys: Keys of the prompt's whole chunks.
        stop_texts: The texts that end it; None if there are none.
        token_bytes: What a token adds to the text; None where that is not known.
        end_tokens: Tokens that end it: those of the request, and the model's own unless the request ignores them.
        place: Its KV; None until it is admitted.
        prefilled: Prompt tokens whose KV is there.
        cacheable: Whether its prompt's KV may be reused; False once the weights changed under it.
        spans: Version spans so far.
        stopped: Whether its newest token is a stop token or completes a stop text.
        asked_at: When it came, in monotonic seconds.
        admitted_at: When it had a place; None before.
    """

    request: GenerateRequest
    tag: object
    limit: int
    seed: int
    stream: random.Random
    chunk_keys: list[bytes]
    stop_texts: StopTexts | None = None
    token_bytes: TokenBytes | None = None
    end_tokens: frozenset[int] = frozenset()
    place: Extent | None = None
    prefilled: int = 0
    cached_tokens: int = 0
    cacheable: bool = True
    cpu_s: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    stopped: bool = False
    asked_at: float = field(default_factory=time.monotonic)
    admitted_at: float | None = None

    @property
    def prompt_length(self) -> int:
        """Tokens of the prompt."""
        return len(self.request.prompt_token_ids)

    @property
    def most_tokens(self) -> int:
        """Tokens of the prompt and the longest output."""
        return self.prompt_length + self.limit

    @property
    def decoding(self) -> bool:
        """Whether its prompt is done, so that it takes part in a decode step."""
        return bool(self.token_ids)

    @property
    def next_position(self) -> int:
        """Position of the newest token, whose KV is not there yet."""
        return self.prompt_length + len(self.token_ids) - 1

    def append(self, token_id: int, log_prob: float, version: int) -> None:
        """Adds an output token made by a policy version."""
        index = len(self.token_ids)
        self.token_ids.append(token_id)
        self.log_probs.append(log_prob)
        self.stopped = token_id in self.end_tokens
        if self.stop_texts is not None and self.stop_texts.complete(token_id):
            self.stopped = True
        if self.spans and self.spans[-1].version == version:
            self.spans[-1] = VersionSpan(version, self.spans[-1].begin, index + 1)
        else:
            self.spans.append(VersionSpan(version, index, index + 1))

    def finish_reason(self) -> FinishReason | None:
        """Why it is over, or None while it is not."""
        if self.stopped:
            return FinishReason.STOP
        return FinishReason.LENGTH if len(self.token_ids) >= self.limit else None

    def text(self) -> str | None:
        """The text of its new tokens, if that is known."""
        if self.token_bytes is None:
            return None
        return b"".join(map(self.token_bytes, self.token_ids)).decode("utf-8", errors="replace")

    def waited_s(self) -> float:
        """Seconds before it was admitted, or until now."""
        return (time.monotonic() if self.admitted_at is None else self.admitted_at) - self.asked_at

    def generation(self, reason: FinishReason) -> Generation:
        """What it produced so far."""
        return Generation(
            token_ids=tuple(self.token_ids),
            log_probs=tuple(self.log_probs),
            finish_reason=reason,
            version_spans=tuple(self.spans),
            seed=self.seed,
            cached_tokens=self.cached_tokens,
            cpu_s=self.cpu_s,
            text=self.text(),
            waited_s=self.waited_s(),
        )
