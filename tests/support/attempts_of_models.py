"""Attempts for executors whose actions carry tokens alone."""

from __future__ import annotations

from callsheet.managers.executor import Attempt
from callsheet.v1 import action_pb2, common_pb2, manager_service_pb2


class NoPayloads:
    """These actions read and write none."""

    async def read(self, blob: common_pb2.Blob) -> bytes:
        raise AssertionError(blob)

    async def write(self, content: bytes) -> common_pb2.Blob:
        raise AssertionError(content)


def attempt_of(sequence: int, action: action_pb2.ActionSpec, *, service: str, cores: tuple[int, ...] = ()) -> Attempt:
    """An attempt with a grant of these cores."""
    grant = manager_service_pb2.Grant(
        token=manager_service_pb2.FencingToken(epoch=1, sequence=sequence), service=service, cores=cores
    )
    return Attempt(grant=grant, action=action, payloads=NoPayloads())


def generate_attempt(
    sequence: int, tokens: tuple[int, ...], sampling: action_pb2.SamplingParameters | None = None
) -> Attempt:
    """A generate attempt; 16 tokens at temperature 1 unless told."""
    default = action_pb2.SamplingParameters(max_new_tokens=16, temperature=1.0, seed=sequence)
    payload = action_pb2.GenerateInput(prompt_token_ids=tokens, sampling=sampling or default)
    return attempt_of(sequence, action_pb2.ActionSpec(generate=payload), service="policy")


def score_attempt(sequence: int, tokens: tuple[int, ...], cores: tuple[int, ...] = ()) -> Attempt:
    """A model-score attempt."""
    payload = action_pb2.RewardInput(model=action_pb2.ModelScoreInput(token_ids=tokens))
    return attempt_of(sequence, action_pb2.ActionSpec(reward=payload), service="scorer", cores=cores)
