"""Divides the sequences that wait for a score into batches of similar length. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def plan_batches(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups sequences so that little is wasted on padding.

    In a batch the longest sequence is at most twice the shortest, and the padded tokens are at most `max_tokens`; a
    sequence that is longer than that has a batch of its own.

    Args:
        lengths: Tokens of each sequence, at least 1.
        max_tokens: Bound of a batch's padded size in tokens.

    Returns:
        Batches of indices into `lengths`; every index once, by rising length.
    """
    batches: list[list[int]] = []
    for index in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        batch = batches[-1] if batches else None
        length = lengths[index]
        if batch and length <= 2 * lengths[batch[0]] and length * (len(batch) + 1) <= max_tokens:
            batch.append(index)
        else:
            batches.append([index])
    return batches
