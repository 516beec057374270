"""What must hold of everything that was generated while weights changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from callsheet.benchmarks.weights.load import Generated
from callsheet.benchmarks.weights.models import errors_of
from callsheet.client import FinishReason

TOLERANCE = 1e-3
"""By how much a log-probability may differ from the reference's: kernels and batches round differently."""


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


def check(generated: Sequence[Generated], published: frozenset[int], *, mode: str) -> CheckedTokens:
    """Looks at all that was generated.

    Args:
        generated: In the order of outcomes.
        published: All versions, the first one included.
        mode: Of the updates. With "keep" the KV of tokens before a switch is that of older weights: what follows it in
            the same action is marked as of another version, and is not recomputed.
    """
    found = CheckedTokens()
    begun: dict[int, set[int]] = {}
    for each in generated:
        found.actions += 1
        found.tokens += len(each.result.token_ids)
        _check_length(found, each, mode)
        _check_versions(found, each, published, mode)
        _check_cache(found, each, begun)
        _recompute(found, each, mode)
    _check_turns(found, generated)
    return found


def _name(each: Generated) -> str:
    return f"trajectory {each.trajectory}, turn {each.turn}"


def _check_length(found: CheckedTokens, each: Generated, mode: str) -> None:
    result = each.result
    found.aborted += result.finish_reason is FinishReason.ABORT
    if len(result.log_probs) != len(result.token_ids):
        found.findings.append(f"{_name(each)}: {len(result.log_probs)} log-probs of {len(result.token_ids)} tokens")
    short = len(result.token_ids) < each.wanted
    if short and (result.finish_reason is not FinishReason.ABORT or mode != "abort"):
        found.findings.append(f"{_name(each)}: {len(result.token_ids)} of {each.wanted} tokens, {result.finish_reason}")
    if len(result.token_ids) > each.wanted:
        found.findings.append(f"{_name(each)}: {len(result.token_ids)} tokens where {each.wanted} were asked for")


def _check_turns(found: CheckedTokens, generated: Sequence[Generated]) -> None:
    """The parts of a turn follow each other without a gap: each begins with all tokens of those before."""
    last: dict[tuple[int, int], Generated] = {}
    for each in generated:
        former = last.get((each.trajectory, each.turn))
        if former is not None and each.prompt != (*former.prompt, *former.result.token_ids):
            found.findings.append(f"{_name(each)}: it was not resumed where it ended")
        last[each.trajectory, each.turn] = each
    for each in last.values():
        if len(each.result.token_ids) != each.wanted:
            found.findings.append(f"{_name(each)}: {each.wanted - len(each.result.token_ids)} tokens are lost")


def _check_versions(found: CheckedTokens, each: Generated, published: frozenset[int], mode: str) -> None:
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


def _check_cache(found: CheckedTokens, each: Generated, begun: dict[int, set[int]]) -> None:
    """Only what its own trajectory left, beginning under the same version, can be in the cache for an action."""
    versions = begun.setdefault(each.trajectory, set())
    now = each.result.begun_version
    if each.result.cached_tokens:
        found.hits += 1
        if now not in versions:
            found.findings.append(f"{_name(each)}: it hit {each.result.cached_tokens} tokens of older weights")
    if now is not None:
        versions.add(now)


def _recompute(found: CheckedTokens, each: Generated, mode: str) -> None:
    spans = each.result.policy_versions
    if not spans:
        return
    first = spans[0]
    if mode == "keep" and each.result.begun_version != first.version:
        # The switch came while its prompt was computed.
        found.marked += 1
        return
    output, log_probs = each.result.token_ids[: first.end], each.result.log_probs[: first.end]
    error, behind = errors_of(first.version, each.prompt, output, log_probs)
    found.recomputed += first.end
    found.largest_error = max(found.largest_error, error)
    if error > TOLERANCE or behind > TOLERANCE:
        found.findings.append(
            f"{_name(each)}: {len(output)} tokens of version {first.version} are not that version's: a log-probability "
            f"is off by {error:.3g}, a token is less likely by {behind:.3g}"
        )
