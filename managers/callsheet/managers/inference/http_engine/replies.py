"""A server's answer to a request, and its words for the versions of weights. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from callsheet.managers.inference.driver import (
    EngineError,
    Generation,
    VersionSpan,
)
from callsheet.managers.inference.http_engine.live_requests import LiveRequest
from callsheet.managers.inference.http_engine.log_probs import Derivation, log_probs_of
from callsheet.managers.inference.http_engine.requests import finish_reason_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A server's answer to a request, in the words of the server.

    Attributes:
        token_ids: The new tokens.
        finish_reason: Why there are no more.
        own: The log-probability of each token.
        likeliest: Log-probabilities of the most likely tokens at each place.
        versions: Spans of weights, as `spans_of` reads them; None if the server tells none.
        cached_tokens: Tokens of the prompt whose KV was there.
        text: The tokens as text; None if the server tells none.
    """

    token_ids: tuple[int, ...]
    finish_reason: object
    own: Sequence[float | None] = ()
    likeliest: Sequence[Sequence[float | None]] = ()
    versions: Sequence[Mapping[str, Any]] | None = None
    cached_tokens: int = 0
    text: str | None = None

    def generation(
        self, live: LiveRequest, how: Derivation, seed: int, start_version: int, *, joint: bool
    ) -> Generation:
        """Returns what came of a request.

        Args:
            live: The request.
            how: How the log-probabilities that it wants follow from those told.
            seed: Its seed.
            start_version: See `version_of`.
            joint: See `over_top_k`.

        Raises:
            EngineError: The answer is none that a request can end with.
        """
        tokens = len(self.token_ids)
        return Generation(
            token_ids=self.token_ids,
            log_probs=log_probs_of(how, live.request.sampling, tokens, self.own, self.likeliest, joint=joint),
            finish_reason=finish_reason_of(self.finish_reason),
            version_spans=one_span(live.begun_version, tokens)
            if self.versions is None
            else spans_of(self.versions, tokens, start_version),
            seed=seed,
            cached_tokens=self.cached_tokens,
            text=self.text,
        )


def label_of(version: int) -> str:
    """Returns the name that a server is to use for the weights of a policy version."""
    return str(version)


def version_of(label: object, start: int) -> int:
    """Returns the policy version that a server's word stands for.

    Args:
        label: The word, such as "12", or "default" from a server with its first weights.
        start: The version of the weights that a server starts with; also of words that are none of Callsheet's.
    """
    text = str(label)
    return int(text) if text.isascii() and text.isdigit() else start


def one_span(version: int, tokens: int) -> tuple[VersionSpan, ...]:
    """The spans of tokens that one version made."""
    return (VersionSpan(version, 0, tokens),) if tokens else ()


def spans_of(told: Sequence[Mapping[str, Any]], tokens: int, start_version: int) -> tuple[VersionSpan, ...]:
    """Reads which version made which tokens; neighbours of one version are joined, and empty spans left out.

    Args:
        told: The server's spans: its word for the version, the first token, and the one after the last.
        tokens: How many tokens there are.
        start_version: See `version_of`.

    Raises:
        EngineError: They do not cover all tokens in order.
    """
    spans: list[VersionSpan] = []
    at = 0
    for each in told:
        version, begin, end = version_of(each["version"], start_version), each["start"], each["end"]
        if begin == end:
            continue
        if begin != at or end < begin:
            break
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(version, spans[-1].begin, end)
        else:
            spans.append(VersionSpan(version, begin, end))
        at = end
    if at != tokens:
        raise EngineError(f"weight_versions are {told}; they must cover {tokens} tokens in order")
    return tuple(spans)
