"""What must hold of everything that was generated while weights changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from callsheet.benchmarks.weights.load import BEGINNING_TOKENS, GeneratedTurn
from callsheet.benchmarks.weights.versions import ModelVersions
from callsheet.client import FinishReason


@dataclass(frozen=True, slots=True)
class WhatHolds:
    """What must hold of tokens.

    Attributes:
        mode: Of the updates.
        versions: The model that computes tokens anew.
        kept_kv: Whether updates of mode keep leave the KV cache of running requests in place. Tokens before a switch
            then have KV of older weights: what follows them is marked as of another version, and is not recomputed.
        tolerance: By how much a log-probability may differ from the model's: kernels and batches round differently.
        begun: By how a prompt begins, under which versions something did before. Loads that follow each other share it,
            as they share the engines' caches.
    """

    mode: str
    versions: ModelVersions
    kept_kv: bool = True
    tolerance: float = 1e-3
    begun: dict[tuple[int, ...], set[int]] = field(default_factory=dict)


@dataclass(slots=True)
class CheckedTokens:
    """What the checks found.

    Attributes:
        actions: Generate actions looked at.
        tokens: Their new tokens.
        recomputed: Tokens that the reference model computed too.
        aborted: Actions that an update ended early.
        crossing: Actions with tokens of several versions.
        marked: Actions that begun under an older version than that of their first token, and say so.
        hits: Actions that found a prefix in their engine's cache.
        versions: Tokens by the version that made them.
        largest_error: The largest difference of a log-probability from the reference's.
        findings: What does not hold, as sentences.
    """

    actions: int = 0
    tokens: int = 0
    recomputed: int = 0
    aborted: int = 0
    crossing: int = 0
    marked: int = 0
    hits: int = 0
    versions: Counter[int] = field(default_factory=Counter)
    largest_error: float = 0.0
    findings: list[str] = field(default_factory=list)


def check(generated: Sequence[GeneratedTurn], published: frozenset[int], holds: WhatHolds) -> CheckedTokens:
    """Looks at all that was generated.

    Args:
        generated: In the order of outcomes.
        published: All versions, the first one included.
        holds: What must hold of it.
    """
    found = CheckedTokens()
    for each in generated:
        found.actions += 1
        found.tokens += len(each.result.token_ids)
        _check_length(found, each, holds.mode)
        _check_versions(found, each, published, holds.mode)
        _check_cache(found, each, holds.begun)
        _recompute(found, each, holds)
    _check_turns(found, generated)
    return found


def _name(each: GeneratedTurn) -> str:
    return f"trajectory {each.trajectory}, turn {each.turn}"


def _check_length(found: CheckedTokens, each: GeneratedTurn, mode: str) -> None:
    result = each.result
    found.aborted += result.finish_reason is FinishReason.ABORT
    if len(result.log_probs) != len(result.token_ids):
        found.findings.append(f"{_name(each)}: {len(result.log_probs)} log-probs of {len(result.token_ids)} tokens")
    short = len(result.token_ids) < each.wanted
    if short and (result.finish_reason is not FinishReason.ABORT or mode != "abort"):
        found.findings.append(f"{_name(each)}: {len(result.token_ids)} of {each.wanted} tokens, {result.finish_reason}")
    if len(result.token_ids) > each.wanted:
        found.findings.append(f"{_name(each)}: {len(result.token_ids)} tokens where {each.wanted} were asked for")


def _check_turns(found: CheckedTokens, generated: Sequence[GeneratedTurn]) -> None:
    """The parts of a turn follow each other without a gap: each begins with all tokens of those before."""
    last: dict[tuple[int, int], GeneratedTurn] = {}
    for each in generated:
        former = last.get((each.trajectory, each.turn))
        if former is not None and each.prompt != (*former.prompt, *former.result.token_ids):
            found.findings.append(f"{_name(each)}: it was not resumed where it ended")
        last[each.trajectory, each.turn] = each
    for each in last.values():
        if len(each.result.token_ids) != each.wanted:
            found.findings.append(f"{_name(each)}: {each.wanted - len(each.result.token_ids)} tokens are lost")


def _check_versions(found: CheckedTokens, each: GeneratedTurn, published: frozenset[int], mode: str) -> None:
    spans = each.result.policy_versions
    at, newest = 0, -1
    for span in spans:
        if span.begin != at or span.end <= span.begin or span.version <= newest:
            found.findings.append(f"{_name(each)}: its versions are {spans}")
        if span.version not in published:
            found.findings.append(f"{_name(each)}: version {span.version} was never published")
        at, newest = span.end, span.version
        found.versions[span.version] += span.end - span.begin
    if at != len(each.result.token_ids):
        found.findings.append(f"{_name(each)}: its versions cover {at} of {len(each.result.token_ids)} tokens")
    found.crossing += len(spans) > 1
    if len(spans) > 1 and mode != "keep":
        found.findings.append(f"{_name(each)}: it has tokens of several versions in mode {mode}")


def _check_cache(found: CheckedTokens, each: GeneratedTurn, begun: dict[tuple[int, ...], set[int]]) -> None:
    """Only what something with the same beginning left, beginning under the same version, can be in the cache."""
    versions = begun.setdefault(each.prompt[:BEGINNING_TOKENS], set())
    now = each.result.begun_version
    if each.result.cached_tokens:
        found.hits += 1
        if now not in versions:
            found.findings.append(f"{_name(each)}: it hit {each.result.cached_tokens} tokens of older weights")
    if now is not None:
        versions.add(now)


def _recompute(found: CheckedTokens, each: GeneratedTurn, holds: WhatHolds) -> None:
    spans = each.result.policy_versions
    if not spans:
        return
    if holds.mode == "keep" and each.result.begun_version != spans[0].version:
        # The switch came while its prompt was computed.
        found.marked += 1
        if holds.kept_kv:
            return
    for span in spans[:1] if holds.kept_kv else spans:
        prompt = (*each.prompt, *each.result.token_ids[: span.begin])
        output, log_probs = each.result.token_ids[span.begin : span.end], each.result.log_probs[span.begin : span.end]
        error, behind = holds.versions.errors_of(span.version, prompt, output, log_probs)
        found.recomputed += len(output)
        found.largest_error = max(found.largest_error, error)
        if error > holds.tolerance or behind > holds.tolerance:
            found.findings.append(
                f"{_name(each)}: {len(output)} tokens of version {span.version} are not that version's: a "
                f"log-probability is off by {error:.3g}, a token is less likely by {behind:.3g}"
            )
