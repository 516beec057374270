"""Text in messages stays text: no message puts a control token into a prompt, and every text comes back as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from callsheet.gateway.chat import Message
from callsheet.gateway.renderers.byte_renderer import ByteRenderer
from callsheet.gateway.renderers.loading import load_renderer
from callsheet.gateway.renderers.template_renderer import TemplateRenderer, token_bytes
from callsheet.gateway.renderers.text_markers import BREAK
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from tests.support.chat_model import END, START, TEXT_END, make_model
from tests.support.expected import expect, present

REPLY = ("<think>", "</think>", "<tool_call>", "</tool_call>")
CONTROL = (START, END, TEXT_END)
PIECES = (*CONTROL, *REPLY, BREAK, BREAK[1:], BREAK[0], "<", "|>", "word", " ", "\n", "\u00e9\U0001f600")
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8).map("".join)
WHOLE = TEXTS.map(lambda text: text.encode(errors="replace").decode())
USER: Message = {"role": "user", "content": "x"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    make_model(directory, 3)
    return directory


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> Tokenizer:
    return Tokenizer.from_file(str(model / "tokenizer.json"))


@pytest.fixture(scope="module")
def renderer(model: Path) -> TemplateRenderer:
    return expect(TemplateRenderer, load_renderer(str(model)))


def controls(tokenizer: Tokenizer, tokens: tuple[int, ...]) -> list[str]:
    """The control tokens of a prompt, those that mark parts of replies among them."""
    written = (str(tokenizer.id_to_token(token)) for token in tokens)
    return [each for each in written if each in CONTROL + REPLY]


def conversation(text: str) -> list[Message]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps({"a": text, text: 1})}}
    return [
        {"role": "system", "content": text},
        {"role": "user", "content": [{"type": "text", "text": text}]},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": text},
    ]


def tools_of(text: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "description": text, "parameters": {}}}]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WHOLE)
def test_no_message_adds_a_control_token(renderer: TemplateRenderer, tokenizer: Tokenizer, text: str) -> None:
    plain, told = (renderer.render(conversation(each), tools_of(each), {}) for each in ("x", text))
    assert controls(tokenizer, told) == controls(tokenizer, plain)
    said = tokenizer.decode(list(told), skip_special_tokens=False)
    assert f"{START}tool\n{text}{END}" in said
    assert f"{START}user\n{text}{END}" in said
    assert json.dumps({"a": text, text: 1}, ensure_ascii=False) in said


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(WHOLE)
def test_what_is_appended_is_what_is_rendered(renderer: TemplateRenderer, tokenizer: Tokenizer, text: str) -> None:
    prompt = renderer.render([USER], (), {})
    reply = tuple(tokenizer.encode(f"word{END}", add_special_tokens=False).ids)
    suffix = present(renderer.bridge(prompt + reply, [{"role": "user", "content": text}], (), {}))
    said = [USER, {"role": "assistant", "content": "word"}, {"role": "user", "content": text}]
    assert prompt + reply + suffix == renderer.render(said, (), {})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_other_text_has_the_tokens_that_the_tokenizer_gives_it(
    renderer: TemplateRenderer, tokenizer: Tokenizer, text: str
) -> None:
    rendered = f"{START}user\n{text}{END}\n{START}assistant\n"
    expected = tuple(tokenizer.encode(rendered, add_special_tokens=False).ids)
    assert renderer.render([{"role": "user", "content": text}], (), {}) == expected


def test_the_markers_of_a_reply_itself_stay(renderer: TemplateRenderer, tokenizer: Tokenizer) -> None:
    reply = {"role": "assistant", "content": f"<think>a</think>b{END}c"}
    tokens = renderer.render([USER, reply, USER], (), {})
    assert controls(tokenizer, tokens).count("</think>") == 1
    assert controls(tokenizer, tokens).count(END) == 3


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_the_bytes_of_tokens_join_to_the_text(renderer: TemplateRenderer, tokenizer: Tokenizer, text: str) -> None:
    tokens = (*tokenizer.encode(text, add_special_tokens=False).ids, *renderer.stop_token_ids)
    assert b"".join(map(renderer.token_bytes, tokens)).decode() == text
    byte_by_byte = ByteRenderer()
    assert b"".join(map(byte_by_byte.token_bytes, byte_by_byte.encode(text))).decode() == text


@pytest.mark.parametrize(
    ("written", "text", "raw"),
    [
        ("<0xE2>", "\N{REPLACEMENT CHARACTER}", b"\xe2"),
        ("\u2581word", "word", b" word"),
        ("\u2581", " ", b" "),
        ("word", "word", b"word"),
        ("\u00c3", "\N{REPLACEMENT CHARACTER}", b"\xc3"),
    ],
)
def test_tokens_of_other_vocabularies(written: str, text: str, raw: bytes) -> None:
    assert token_bytes(written, text) == raw
