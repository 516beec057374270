"""The tokens of generations, which engines hold in their KV caches."""

from __future__ import annotations

from typing import NamedTuple


class GenerationSize(NamedTuple):
    """Tokens that a generation asks for.

    Attributes:
        prompt_tokens: Tokens of its prompt.
        max_new_tokens: The most it may write.
    """

    prompt_tokens: int
    max_new_tokens: int

    @property
    def most_tokens(self) -> int:
        """Tokens of a KV cache that it can come to hold."""
        return self.prompt_tokens + self.max_new_tokens


class GeneratedTokens(NamedTuple):
    """Tokens that a generation wrote, and tokens of its prompt that were in the cache."""

    new_tokens: int
    cached_tokens: int
