from __future__ import annotations

import subprocess
import sys

import pytest
from callsheet.managers.inference import tokenizer
from callsheet.managers.models.config import TransformerConfig
from hypothesis import given
from hypothesis import strategies as st


@given(st.text())
def test_round_trip(text: str) -> None:
    ids = tokenizer.encode(text, begin=True, end_of_turn=True)
    assert (ids[0], ids[-1]) == (tokenizer.BEGIN_TOKEN, tokenizer.END_OF_TURN_TOKEN)
    assert tokenizer.decode(ids) == text


@given(st.lists(st.integers(0, tokenizer.VOCABULARY_SIZE - 1)))
def test_every_sequence_of_tokens_is_a_text(ids: list[int]) -> None:
    assert isinstance(tokenizer.decode(ids), str)


def test_surrogates_are_encoded() -> None:
    assert tokenizer.encode("\ud800") == [0xED, 0xA0, 0x80]


@pytest.mark.parametrize("token", [-1, tokenizer.VOCABULARY_SIZE])
def test_unknown_ids_are_refused(token: int) -> None:
    with pytest.raises(ValueError, match=f"token id {token}"):
        tokenizer.decode([65, token])


def test_the_default_model_has_the_tokenizers_vocabulary() -> None:
    assert TransformerConfig().vocabulary_size == tokenizer.VOCABULARY_SIZE


def test_tokenizer_and_settings_import_no_torch() -> None:
    code = (
        "import sys; import callsheet.managers.inference.tokenizer, callsheet.managers.inference.settings,"
        " callsheet.managers.inference.driver; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
