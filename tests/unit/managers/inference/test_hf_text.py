"""Text of tokens of Hugging Face's tokenizers: what single tokens add, stop texts, and a model's own end tokens."""

from __future__ import annotations

import pytest
from callsheet.managers.inference.driver import FinishReason, Generation
from callsheet.managers.inference.torch_engine.engine import TorchEngine
from callsheet.managers.inference.torch_engine.hf.loading import load_hf_model
from callsheet.managers.inference.torch_engine.hf.text import token_bytes_of
from callsheet.managers.inference.torch_engine.sequence import StopTexts
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from tests.support.hf_models import byte_level_tokenizer, model_directory, sentencepiece_tokenizer
from tests.support.torch_models import prompt, request, run_out

TEXTS = ["the agent says: 42", "grüße, 世界 🎉", "  two  spaces\n\ttab ", "ça <|im_end|> va"]


def word_piece_tokenizer() -> PreTrainedTokenizerFast:
    """Whole words, and their ends, as of BERT."""
    words = {word: index for index, word in enumerate(["[UNK]", "a", "the", "agent", "##s", "says", ":", "42"])}
    tokenizer = Tokenizer(models.WordPiece(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


TOKENIZERS = {"byte level": byte_level_tokenizer, "sentencepiece": sentencepiece_tokenizer}


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_bytes_of_tokens_make_the_text(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]()
    token_bytes = token_bytes_of(tokenizer)
    ids = tokenizer.encode(text, add_special_tokens=False)
    joined = b"".join(map(token_bytes, ids)).decode()
    # Sentencepiece puts a space before a text and takes it away again. Behind a prompt it is one.
    lead = " " if name == "sentencepiece" else ""
    assert joined == lead + str(tokenizer.decode(ids, skip_special_tokens=True))


def test_tokens_of_words_have_their_spaces() -> None:
    tokenizer = word_piece_tokenizer()
    ids = tokenizer.encode("the agents says", add_special_tokens=False)
    assert b"".join(map(token_bytes_of(tokenizer), ids)) == b" the agents says"


def test_tokens_without_text_add_nothing() -> None:
    tokenizer = byte_level_tokenizer()
    token_bytes = token_bytes_of(tokenizer)
    assert tokenizer.eos_token_id is not None
    assert token_bytes(tokenizer.eos_token_id) == b""
    assert token_bytes(len(tokenizer) + 5) == b""


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_stop_text_is_found_where_characters_are_cut_by_tokens(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    ids = tokenizer.encode("hm, 世界 🎉!", add_special_tokens=False)
    watched = StopTexts(("界 🎉",), token_bytes_of(tokenizer))
    found = next(index for index, token in enumerate(ids) if watched.complete(token))
    text = str(tokenizer.decode(ids[: found + 1]))
    assert text.endswith("🎉")


def generate(end_tokens: frozenset[int], **sampling: object) -> Generation:
    """Greedy tokens of a tiny model that takes some tokens for its end."""
    loaded = load_hf_model(model_directory(), kv_cache_tokens=512, device="cpu")
    engine = TorchEngine(loaded.runner, token_bytes=loaded.token_bytes, end_tokens=end_tokens)
    asked = request("a", prompt(9), **{"temperature": 0, "ignore_eos": False, **sampling})
    return run_out(engine, asked)[0]


def test_generation_ends_at_the_models_own_end_unless_that_is_ignored() -> None:
    free = generate(frozenset())
    end = frozenset({free.token_ids[5]})
    first = free.token_ids.index(free.token_ids[5])
    ended = generate(end)
    assert (ended.token_ids, ended.finish_reason) == (free.token_ids[: first + 1], FinishReason.STOP)
    assert generate(end, ignore_eos=True).token_ids == free.token_ids
    assert free.text == byte_level_tokenizer().decode(list(free.token_ids), skip_special_tokens=True)
