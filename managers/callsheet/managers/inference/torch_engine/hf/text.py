"""The text that single tokens add, for tokenizers of Hugging Face."""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path
from typing import Any

import structlog
from callsheet.managers.inference.torch_engine.sequence import TokenBytes
from transformers import AutoTokenizer, PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

log = structlog.get_logger(__name__)

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_MARKED_SPACE = "\u2581"


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase | None:
    """Returns the tokenizer of a model's directory; None, with a warning, if it cannot be loaded."""
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(
            directory, local_files_only=True, trust_remote_code=False
        )
    except Exception as error:  # Token ids go in and out without it.
        log.warning("tokenizer cannot be loaded", directory=str(directory), error=f"{type(error).__name__}: {error}")
        return None
    return tokenizer


def token_bytes_of(tokenizer: PreTrainedTokenizerBase) -> TokenBytes:
    """Returns a function from a token to the bytes that it adds; special tokens add none.

    Tokens of byte-level vocabularies, and the byte tokens of others, may be parts of characters. Bytes are exact where
    a text is not yet.
    """
    special = {*tokenizer.all_special_ids, *(id_ for id_, added in _added(tokenizer).items() if added.special)}
    added: dict[int, bytes] = {id_: entry.content.encode() for id_, entry in _added(tokenizer).items()}
    plain = _plain_tokens(tokenizer)

    @functools.lru_cache(maxsize=1 << 18)
    def token_bytes(token_id: int) -> bytes:
        if token_id in special:
            return b""
        if token_id in added:
            return added[token_id]
        return plain(token_id)

    return token_bytes


def _plain_tokens(tokenizer: PreTrainedTokenizerBase) -> TokenBytes:
    kinds = _decoder_kinds(tokenizer)

    def piece(token_id: int) -> str:
        token = tokenizer.convert_ids_to_tokens(token_id)
        return token if isinstance(token, str) else ""

    if "ByteLevel" in kinds:
        letters: dict[int, str] = bytes_to_unicode()
        byte_of = {letter: byte for byte, letter in letters.items()}
        return lambda token_id: b"".join(
            bytes((byte_of[letter],)) if letter in byte_of else letter.encode() for letter in piece(token_id)
        )
    if "ByteFallback" in kinds:

        def bytes_or_text(token_id: int) -> bytes:
            token = piece(token_id)
            byte = _BYTE_TOKEN.fullmatch(token)
            return bytes.fromhex(byte[1]) if byte else token.replace(_MARKED_SPACE, " ").encode()

        return bytes_or_text
    return _by_difference(tokenizer)


def _by_difference(tokenizer: PreTrainedTokenizerBase) -> TokenBytes:
    """Returns a function for the text that a token adds after another one; for decoders that join whole words."""
    anchor = tokenizer.encode("a", add_special_tokens=False)[-1:]

    def text(token_ids: list[int]) -> str:
        return str(tokenizer.decode(token_ids, clean_up_tokenization_spaces=False))

    before = text(anchor)
    return lambda token_id: text([*anchor, token_id]).removeprefix(before).encode()


def _decoder_kinds(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    decoder = getattr(backend, "decoder", None)
    if decoder is None:
        return set()
    described: dict[str, Any] = json.loads(decoder.__getstate__())
    return {described.get("type", ""), *(str(step.get("type")) for step in described.get("decoders", []))}


def _added(tokenizer: PreTrainedTokenizerBase) -> dict[int, Any]:
    return dict(getattr(tokenizer, "added_tokens_decoder", {}))
