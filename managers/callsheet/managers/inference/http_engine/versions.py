"""What servers call their weights, and which policy version that is."""

from __future__ import annotations

from collections.abc import Sequence

from callsheet.managers.inference.driver import VersionSpan


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


def spans_of(told: Sequence[tuple[int, int, int]], tokens: int) -> tuple[VersionSpan, ...] | None:
    """Spans as a server told them (version, begin, end), without empty ones; None unless they cover all tokens.

    Neighbours of one version are joined.
    """
    spans: list[VersionSpan] = []
    at = 0
    for version, begin, end in told:
        if begin == end:
            continue
        if begin != at or end < begin:
            return None
        if spans and spans[-1].version == version:
            spans[-1] = VersionSpan(version, spans[-1].begin, end)
        else:
            spans.append(VersionSpan(version, begin, end))
        at = end
    return tuple(spans) if at == tokens else None
