"""The tokens of one scripted answer, under the sampling that a request asks for. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from callsheet.managers.inference.driver import FinishReason, LogProbsMode, Sampling
from callsheet.managers.inference.scripted_engine.script import ScriptedReply
from callsheet.managers.inference.scripted_engine.vocabulary import ScriptVocabulary


@dataclass(frozen=True, slots=True)
class ScriptedToken:
    """One token of an answer.

    Attributes:
        token_id: Its id.
        log_prob: Natural logarithm of its probability, scripted or made up.
        version: Its policy version; None is the engine's own.
        end: Why the answer ends with it; None if it goes on.
    """

    token_id: int
    log_prob: float
    version: int | None
    end: FinishReason | None


def answer(
    reply: ScriptedReply, vocabulary: ScriptVocabulary, sampling: Sampling, seed: int
) -> Iterator[ScriptedToken]:
    """Yields the tokens of a reply until it is over, or the request wants no more of it."""
    said: list[int] = []
    for token, log_prob, last in _tokens(reply, vocabulary, sampling, seed):
        said.append(token)
        end: FinishReason | None = None
        if _stops(said, vocabulary, sampling):
            end = FinishReason.STOP
        elif len(said) == sampling.max_new_tokens:
            end = FinishReason.LENGTH
        elif last:
            end = FinishReason.LENGTH if reply.cut else FinishReason.STOP
        place = len(said) - 1
        version = next((version for version, begin, until in reply.versions if begin <= place < until), None)
        yield ScriptedToken(token, log_prob, version, end)
        if end is not None:
            return


def scripted_tokens(reply: ScriptedReply, vocabulary: ScriptVocabulary) -> tuple[int, ...]:
    """Returns the tokens of a reply that is not random, the end token included.

    Raises:
        ValueError: A token is not in the vocabulary, or there are more or fewer log-probabilities than tokens.
    """
    tokens = list(vocabulary.encode(reply.text) if reply.text is not None else reply.token_ids or ())
    for token in tokens:
        if not 0 <= token < vocabulary.size:
            raise ValueError(f"token id {token} is outside 0 to {vocabulary.size - 1}")
    if not reply.cut and tokens[-1:] != [vocabulary.end_token]:
        tokens.append(vocabulary.end_token)
    if reply.log_probs and len(reply.log_probs) != len(tokens):
        raise ValueError(f"log_probs has {len(reply.log_probs)} numbers; the reply has {len(tokens)} tokens")
    return tuple(tokens)


def made_up_log_prob(token_id: int, place: int) -> float:
    """Returns the log-probability of a token for which the script has none: another for each token and place."""
    return -(1 + (31 * token_id + 7 * place) % 1009) / 128


def _tokens(
    reply: ScriptedReply, vocabulary: ScriptVocabulary, sampling: Sampling, seed: int
) -> Iterator[tuple[int, float, bool]]:
    if reply.random_tokens is not None:
        yield from _random(reply.random_tokens, vocabulary, sampling, seed)
        return
    tokens = scripted_tokens(reply, vocabulary)
    for place, token in enumerate(tokens):
        log_prob = reply.log_probs[place] if reply.log_probs else made_up_log_prob(token, place)
        yield token, log_prob, place == len(tokens) - 1


def _random(
    count: int, vocabulary: ScriptVocabulary, sampling: Sampling, seed: int
) -> Iterator[tuple[int, float, bool]]:
    """Yields tokens of a model for which each one but the end token is as likely as any other."""
    rng = random.Random(seed)
    others = vocabulary.size - 1
    kept = 1 if sampling.temperature == 0 else max(1, math.ceil(others * sampling.top_p))
    kept = min(kept, sampling.top_k or kept)
    log_prob = -math.log(others if sampling.log_probs_mode is LogProbsMode.RAW else kept) if kept > 1 else 0.0
    for place in range(count):
        drawn = rng.randrange(kept)
        yield drawn + (drawn >= vocabulary.end_token), log_prob, place == count - 1


def _stops(said: list[int], vocabulary: ScriptVocabulary, sampling: Sampling) -> bool:
    if said[-1] in sampling.end_tokens(frozenset({vocabulary.end_token})):
        return True
    if not sampling.stop:
        return False
    text = vocabulary.decode(said)
    return any(stop in text for stop in sampling.stop)
