"""The texts that end a generation."""

from __future__ import annotations

import pytest
from callsheet.managers.inference import tokenizer
from callsheet.managers.inference.driver import RequestRefusedError
from callsheet.managers.inference.torch_engine.engine import TorchEngine
from callsheet.managers.inference.torch_engine.runner import ModelRunner
from callsheet.managers.inference.torch_engine.sequence import StopTexts

from tests.support.torch_models import prompt, request, small_model


def test_they_need_a_tokenizer() -> None:
    asked = request("a", prompt(4), stop=("x",))
    with pytest.raises(RequestRefusedError) as refusal:
        TorchEngine(ModelRunner(small_model())).sequence(asked)
    assert refusal.value.reason == "no_tokenizer"


def of_two_bytes(token_id: int) -> bytes:
    """A vocabulary of which each token but the last three adds two bytes."""
    return tokenizer.token_bytes(token_id) * 2


@pytest.mark.parametrize(
    ("texts", "tokens", "completes"),
    [
        (("end",), b"an end", 5),
        (("zz", "nd"), b"end ", 2),
        (("e",), b"e", 0),
        (("\u00e4",), "x\u00e4".encode(), 2),
        (("abc", "bcd"), b"xbcd", 3),
        (("end",), b"en d", None),
    ],
)
def test_stop_texts_are_seen_across_tokens(texts: tuple[str, ...], tokens: bytes, completes: int | None) -> None:
    watched = StopTexts(texts, tokenizer.token_bytes)
    seen = [watched.complete(token) for token in tokens]
    assert (seen.index(True) if any(seen) else None) == completes


def test_stop_texts_within_tokens_of_several_bytes() -> None:
    watched = StopTexts(("abb",), of_two_bytes)
    assert [watched.complete(token) for token in (*b"xa", tokenizer.END_OF_TURN_TOKEN, *b"b")] == [
        False,
        False,
        False,
        True,
    ]
