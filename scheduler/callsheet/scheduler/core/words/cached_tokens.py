"""What the core knows of the tokens of generations, which engines hold in their KV caches."""

from __future__ import annotations

from typing import NamedTuple


class GenerationSize(NamedTuple):
    """What a generation asks for.

    Attributes:
        prompt_tokens: Tokens of its prompt.
        max_new_tokens: The most it may write.
    """

    prompt_tokens: int
    max_new_tokens: int

    @property
    def most_tokens(self) -> int:
        """What it can come to hold of a KV cache."""
        return self.prompt_tokens + self.max_new_tokens


class GeneratedTokens(NamedTuple):
    """What became of a generation: the tokens it wrote, and those of its prompt that were found in the cache."""

    new_tokens: int
    cached_tokens: int
