"""What servers call their weights, and which policy version that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from callsheet.managers.inference.driver import EngineError, VersionSpan


def label_of(version: int) -> str:
    """What a server is told to call the weights of a policy version."""
    return str(version)


def version_of(label: object, start: int) -> int:
    """The policy version that a server's word stands for.

    Args:
        label: The word, such as "12", or "default" from a server whose weights nobody has replaced.
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
