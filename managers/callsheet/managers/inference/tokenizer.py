"""Text to byte tokens and back: ids 0 to 255 are bytes, the three after them mark structure. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Iterable

from callsheet.v1 import names

BEGIN_TOKEN = names.BEGIN_TOKEN
END_OF_TURN_TOKEN = names.END_OF_TURN_TOKEN
VOCABULARY_SIZE = names.VOCABULARY_SIZE


def encode(text: str, *, begin: bool = False, end_of_turn: bool = False) -> list[int]:
    """Returns the UTF-8 bytes of a text as token ids, with the markers asked for around them."""
    return [
        *([BEGIN_TOKEN] if begin else []),
        *text.encode("utf-8", errors="surrogatepass"),
        *([END_OF_TURN_TOKEN] if end_of_turn else []),
    ]


def token_bytes(token_id: int) -> bytes:
    """Returns what one token of the vocabulary adds to the text; nothing for a marker."""
    return bytes((token_id,)) if token_id < BEGIN_TOKEN else b""


def decode(token_ids: Iterable[int]) -> str:
    """Returns the text of tokens; markers are left out, bytes that are not UTF-8 become U+FFFD.

    Raises:
        ValueError: An id is not in the vocabulary.
    """
    ids = list(token_ids)
    for token in ids:
        if not 0 <= token < VOCABULARY_SIZE:
            raise ValueError(f"token id {token} is outside 0 to {VOCABULARY_SIZE - 1}")
    return bytes(token for token in ids if token < BEGIN_TOKEN).decode("utf-8", errors="replace")
