"""Whether samples are what the engine sampled: compared token by token with the engine's own record. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from callsheet.gateway.conversations.samples import Sample
from callsheet.gateway.conversations.turns import Drift


@dataclass(frozen=True, slots=True)
class EngineCall:
    """What the engine was asked and what it sampled; numbers are per token of the reply.

    Attributes:
        prompt: The prompt's tokens.
        reply: The reply's.
        log_probs: As the engine told them.
        versions: The policy version of each token.
        drift: How the gateway classed the prompt.
        parent: The call that the gateway says it continues.
    """

    prompt: tuple[int, ...]
    reply: tuple[int, ...]
    log_probs: tuple[float, ...]
    versions: tuple[int, ...]
    drift: Drift
    parent: int | None


def differences(calls: Sequence[EngineCall], samples: Sequence[Sample]) -> list[str]:
    """Returns what of the samples is not as the engine has it; nothing if all is.

    Args:
        calls: In the order of their commits, which is how samples name them.
        samples: Of one conversation.
    """
    found: list[str] = []
    trained = [[0] * len(call.reply) for call in calls]
    for sample in samples:
        found += _of_sample(calls, sample, trained)
    lost = _lost(calls)
    for number, counts in enumerate(trained):
        for place, count in enumerate(counts):
            if count != 1 and not (count == 0 and place >= lost[number]):
                found.append(f"call {number}: token {place} is trained on {count} times")
                break
    return found


def _of_sample(calls: Sequence[EngineCall], sample: Sample, trained: list[list[int]]) -> list[str]:
    last = calls[sample.turns[-1]]
    if sample.token_ids != last.prompt + last.reply:
        return [f"sample of call {sample.turns[-1]}: its tokens are not what the engine saw and sampled"]
    length = len(sample.token_ids)
    log_probs: list[float | None] = [None] * length
    versions: list[int | None] = [None] * length
    owners: list[tuple[int, int] | None] = [None] * length
    for number, following in zip(sample.turns, [*sample.turns[1:], None], strict=True):
        call = calls[number]
        begin = len(call.prompt)
        kept = _kept(call, None if following is None else calls[following])
        if sample.token_ids[:begin] != call.prompt or sample.token_ids[begin : begin + kept] != call.reply[:kept]:
            return [f"sample of call {sample.turns[-1]}: call {number} is not in it as the engine saw it"]
        for place in range(kept):
            log_probs[begin + place] = call.log_probs[place]
            versions[begin + place] = call.versions[place]
            owners[begin + place] = (number, place)
    found: list[str] = []
    if list(sample.log_probs) != log_probs:
        found.append(f"sample of call {sample.turns[-1]}: log-probabilities differ")
    if list(sample.versions) != versions:
        found.append(f"sample of call {sample.turns[-1]}: versions differ")
    for owner, mask in zip(owners, sample.loss_mask, strict=True):
        if owner is not None:
            trained[owner[0]][owner[1]] += mask
        elif mask:
            found.append(f"sample of call {sample.turns[-1]}: a token that was not sampled is trained on")
            break
    return found


def _kept(call: EngineCall, following: EngineCall | None) -> int:
    """Returns how many tokens of a reply the next prompt begins with; all of them, unless it was realigned."""
    if following is None or following.drift is not Drift.REALIGNED:
        return len(call.reply)
    rest = following.prompt[len(call.prompt) :]
    pairs = enumerate(zip(call.reply, rest, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(call.reply), len(rest)))


def _lost(calls: Sequence[EngineCall]) -> list[int]:
    """Returns from which token on each reply may be lost: where a later call was realigned within it."""
    lost = [len(call.reply) for call in calls]
    for call in calls:
        if call.drift is Drift.REALIGNED and call.parent is not None:
            lost[call.parent] = min(lost[call.parent], _kept(calls[call.parent], call))
    return lost
