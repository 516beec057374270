"""Turns the texts of a script into tokens and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from callsheet.managers.inference import tokenizer as byte_tokenizer


class ScriptVocabulary(Protocol):
    """The tokens of the model that a script stands for."""

    @property
    def size(self) -> int:
        """How many ids there are."""

    @property
    def end_token(self) -> int:
        """The token that ends a turn."""

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text; markers of structure in it become their tokens."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Returns the text of tokens, without markers of structure."""


class ByteVocabulary:
    """The demo's bytes."""

    size = byte_tokenizer.VOCABULARY_SIZE
    end_token = byte_tokenizer.END_OF_TURN_TOKEN

    def encode(self, text: str) -> list[int]:
        """See `ScriptVocabulary`."""
        return byte_tokenizer.encode(text)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `ScriptVocabulary`."""
        return byte_tokenizer.decode(token_ids)


class TokenizerVocabulary:
    """A tokenizer of Hugging Face.

    Args:
        directory: With `tokenizer.json`, and a `tokenizer_config.json` that names the `eos_token`.

    Raises:
        ValueError: A file is missing, or names no end token.
    """

    def __init__(self, directory: Path) -> None:
        from tokenizers import Tokenizer

        file = directory / "tokenizer.json"
        if not file.is_file():
            raise ValueError(f"model: {str(directory)!r}: must be a directory with tokenizer.json")
        self._tokenizer = Tokenizer.from_file(str(file))
        self.size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        config = json.loads((directory / "tokenizer_config.json").read_text())
        named = config.get("eos_token")
        text = named.get("content") if isinstance(named, dict) else named
        end = self._tokenizer.token_to_id(text) if text else None
        if end is None:
            raise ValueError(f"{directory}/tokenizer_config.json: eos_token is {named!r}; it must be a token")
        self.end_token: int = end

    def encode(self, text: str) -> list[int]:
        """See `ScriptVocabulary`."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """See `ScriptVocabulary`."""
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))


def load_vocabulary(directory: Path | None) -> ScriptVocabulary:
    """Returns the vocabulary of a model's directory; of the demo's model where none is given.

    Raises:
        ValueError: A file is missing.
    """
    return ByteVocabulary() if directory is None else TokenizerVocabulary(directory)
