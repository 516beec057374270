"""Makes a trainer's samples from a conversation: each path through its turns once, and each sampled token once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callsheet.gateway.conversations.turns import ConversationTurn, Generated


@dataclass(frozen=True, slots=True)
class Sample:
    """One row for a trainer; all but `turns` have one entry for each token.

    Attributes:
        token_ids: Prompt, reply, what came after it, the next reply, and so on.
        loss_mask: 1 for a token that was sampled here and is in no other sample with a 1, else 0.
        log_probs: Natural logarithm of a sampled token's probability; None for others, or where no engine told.
        versions: The policy version that made a sampled token; None for others, or where no engine told.
        turns: The turns of the path, by number.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[int, ...]
    log_probs: tuple[float | None, ...]
    versions: tuple[int | None, ...]
    turns: tuple[int, ...]


def merge(turns: Sequence[ConversationTurn]) -> tuple[Sample, ...]:
    """Returns the samples of turns, of which number i is at place i.

    A path that another one continues is no sample of its own. Where paths share a reply, the longest one trains it; of
    equally long ones the older.
    """
    continued = {turn.parent for turn in turns}
    ends = sorted((turn for turn in turns if turn.number not in continued), key=lambda turn: -turn.total_length)
    trained = [0] * len(turns)
    samples = (_sample(_path(turns, end), trained) for end in ends)
    return tuple(sample for sample in samples if any(sample.loss_mask))


def path_tokens(turns: Sequence[ConversationTurn], number: int) -> tuple[int, ...]:
    """Returns the tokens of a turn: its prompt and its reply."""
    tokens: list[int] = []
    for turn in _path(turns, number=number):
        del tokens[turn.kept :]
        tokens += turn.suffix
        tokens += turn.reply.token_ids
    return tuple(tokens)


def _path(
    turns: Sequence[ConversationTurn], end: ConversationTurn | None = None, number: int = 0
) -> list[ConversationTurn]:
    path = [turns[number] if end is None else end]
    while path[-1].parent is not None:
        path.append(turns[path[-1].parent])
    return path[::-1]


def _sample(path: Sequence[ConversationTurn], trained: list[int]) -> Sample:
    tokens: list[int] = []
    mask: list[int] = []
    log_probs: list[float | None] = []
    versions: list[int | None] = []
    for at, turn in enumerate(path):
        for column in (tokens, mask, log_probs, versions):
            del column[turn.kept :]
        context, reply = len(turn.suffix), turn.reply
        count = len(reply.token_ids)
        # What the next turn of this path does not keep of the reply is not in this sample.
        kept = count if at + 1 == len(path) else max(0, min(count, path[at + 1].kept - turn.prompt_length))
        done = trained[turn.number]
        trained[turn.number] = max(done, kept)
        tokens += turn.suffix + reply.token_ids
        mask += [0] * context + [1 if done <= place < kept else 0 for place in range(count)]
        log_probs += [None] * context + list(reply.log_probs or [None] * count)
        versions += [None] * context + _versions(reply)
    return Sample(tuple(tokens), tuple(mask), tuple(log_probs), tuple(versions), tuple(turn.number for turn in path))


def _versions(reply: Generated) -> list[int | None]:
    versions: list[int | None] = [None] * len(reply.token_ids)
    for span in reply.versions:
        for place in range(max(0, span.begin), min(span.end, len(versions))):
            versions[place] = span.version
    return versions
