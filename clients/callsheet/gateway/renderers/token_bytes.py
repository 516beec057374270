"""The bytes of one token of a vocabulary, which may be a part of a character."""

from __future__ import annotations

from typing import Final

_SHOWN: Final = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
_HIDDEN: Final = tuple(byte for byte in range(256) if byte not in _SHOWN)
# Byte-level vocabularies write each byte as a letter: as itself, or from U+0100 on.
_BYTES: Final = {chr(byte): byte for byte in _SHOWN} | {chr(0x100 + place): byte for place, byte in enumerate(_HIDDEN)}
_SPACE: Final = "\N{LOWER ONE EIGHTH BLOCK}"


def token_bytes(written: str, text: str) -> bytes:
    """Returns the bytes of a token.

    Args:
        written: As the vocabulary writes it: in letters that stand for bytes, as "<0xE2>", or with marked spaces.
        text: As its decoder writes it, if it stands alone.
    """
    if written.startswith("<0x") and len(written) == len("<0xE2>"):
        return bytes.fromhex(written[3:5])
    if "\N{REPLACEMENT CHARACTER}" in text and all(letter in _BYTES for letter in written):
        return bytes(_BYTES[letter] for letter in written)
    # A decoder leaves out the space at the begin of a text.
    return (f" {text}" if written.startswith(_SPACE) and not text.startswith(" ") else text).encode()
