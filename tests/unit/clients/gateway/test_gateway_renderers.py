"""Renderers of models with a tokenizer and a chat template: prompts, what is appended to them, and replies."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from callsheet.gateway.chat import BadRequestError, ChatRequest, Message, Tool
from callsheet.gateway.conversations.conversation import Conversation
from callsheet.gateway.conversations.renderer import Renderer
from callsheet.gateway.conversations.turns import Drift, Generated
from callsheet.gateway.renderers import template_renderer
from callsheet.gateway.renderers.loading import load_renderer
from callsheet.gateway.renderers.tool_calls import ToolFormat, detect, parse_calls
from tokenizers import Tokenizer

from tests.support.chat_model import END, VOCABULARY_SIZE, make_model

USER: Message = {"role": "user", "content": "Say a word."}
PARAMETERS = {"properties": {"path": {"type": "string"}, "depth": {"type": "integer"}}}
TOOLS: tuple[Tool, ...] = ({"type": "function", "function": {"name": "run", "parameters": PARAMETERS}},)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    make_model(directory, 3)
    return directory


@pytest.fixture(scope="module")
def renderer(model: Path) -> Renderer:
    return load_renderer(str(model))


def other_template(model: Path, place: Path, source: str) -> Renderer:
    path = place / "other.jinja"
    path.write_text(source)
    return load_renderer(str(model), chat_template=path, today=datetime.date(2026, 11, 23))


def ids(model: Path, text: str) -> tuple[int, ...]:
    return tuple(Tokenizer.from_file(str(model / "tokenizer.json")).encode(text, add_special_tokens=False).ids)


def test_the_vocabulary_is_made_by_merges(model: Path) -> None:
    assert len(json.loads((model / "tokenizer.json").read_text())["model"]["merges"]) >= 600
    assert Tokenizer.from_file(str(model / "tokenizer.json")).get_vocab_size() == VOCABULARY_SIZE


def test_what_is_appended_is_what_the_template_renders(model: Path, renderer: Renderer) -> None:
    sampled = ids(model, f"word{END}")
    history: list[Message] = [USER, {"role": "assistant", "content": "word"}]
    for new in ({"role": "user", "content": "on"}, {"role": "tool", "tool_call_id": "x", "content": "ok"}):
        prompt = renderer.render([USER], TOOLS, {})
        suffix = renderer.bridge(prompt + sampled, [new], TOOLS, {})
        assert suffix is not None
        assert prompt + sampled + suffix == renderer.render([*history, new], TOOLS, {})
    cut = renderer.bridge(prompt + sampled[:-1], [USER], (), {})
    whole = renderer.bridge(prompt + sampled, [USER], (), {})
    assert cut is not None
    assert cut == (sampled[-1], *(whole or ()))


def test_a_template_that_strips_old_reasoning_does_not_strip_it_from_known_tokens(
    model: Path, renderer: Renderer
) -> None:
    talk = Conversation(renderer)
    first = talk.prepare(ChatRequest(messages=[USER]))
    sampled = ids(model, f"<think>\nhm, well\n</think>\n\nword{END}")
    message = talk.commit(first, Generated(sampled)).message
    assert (message["reasoning_content"], message["content"]) == ("hm, well", "word")
    dropped = {"role": "assistant", "content": "word"}
    second = talk.prepare(ChatRequest(messages=[USER, dropped, USER]))
    assert second.drift is Drift.CLEAN
    assert second.token_ids[: len(first.token_ids + sampled)] == first.token_ids + sampled
    assert "hm, well" not in renderer.decode(renderer.render([USER, message, USER], (), {}))


@pytest.mark.parametrize(
    "source",
    [
        # Text of a turn depends on how many came before it.
        "{% for m in messages %}{{ loop.index }}{{ m.role }}{{ m.content }}<|end|>{% endfor %}",
        # No special token ends a turn: what follows may merge with the reply.
        "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
        # Only one question is taken.
        "{% if messages | length > 2 %}{{ raise_exception('one') }}{% endif %}{{ messages[0].content }}<|end|>",
    ],
)
def test_nothing_is_appended_where_the_template_is_not_made_of_turns(model: Path, tmp_path: Path, source: str) -> None:
    renderer = other_template(model, tmp_path, source)
    assert renderer.bridge(ids(model, f"word{END}"), [USER], (), {}) is None


def test_where_nothing_is_proved_the_conversation_forks_and_says_so(model: Path, tmp_path: Path) -> None:
    renderer = other_template(model, tmp_path, "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    talk = Conversation(renderer)
    committed = talk.commit(talk.prepare(ChatRequest(messages=[USER])), Generated(ids(model, "word")))
    second = talk.prepare(ChatRequest(messages=[USER, committed.message, USER]))
    assert (second.drift, second.parent) == (Drift.FORKED, None)
    assert second.reason.startswith("nothing proves")


def test_a_template_is_told_the_date_and_refuses_by_itself(model: Path, tmp_path: Path) -> None:
    source = "{{ strftime_now('%d %b %Y') }}{% generation %}{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
    renderer = other_template(model, tmp_path, source + "{% endgeneration %}")
    assert renderer.decode(renderer.render([USER], (), {})) == "23 Nov 2026"
    with pytest.raises(BadRequestError, match="no tools"):
        renderer.render([USER], TOOLS, {})
    with pytest.raises(BadRequestError, match=r"template_arguments\.messages"):
        renderer.render([USER], (), {"messages": []})


def test_system_messages_at_the_beginning_are_one(renderer: Renderer) -> None:
    first, second = ({"role": "system", "content": text} for text in ("be kind", "be brief"))
    joined = renderer.render([{"role": "system", "content": "be kind\n\nbe brief"}, USER], (), {})
    assert renderer.render([first, second, USER], (), {}) == joined


def test_halves_of_surrogate_pairs_are_replaced(renderer: Renderer) -> None:
    assert "word ?" in renderer.decode(renderer.render([{"role": "user", "content": "word \ud83d"}], (), {}))


def test_reasoning_that_the_prompt_has_opened(model: Path, renderer: Renderer) -> None:
    opened = ids(model, "<|start|>assistant\n<think>\n")
    assert renderer.parse(ids(model, "so\n</think>\n\nyes"), (), (), opened).content == "yes"
    cut = renderer.parse(ids(model, "so it"), (), (), opened)
    assert (cut.content, cut.reasoning) == ("", "so it")
    plain = renderer.parse(ids(model, "so it"), (), (), ids(model, "<|start|>assistant\n"))
    assert (plain.content, plain.reasoning) == ("so it", None)


@pytest.mark.parametrize(
    ("form", "text", "rest", "arguments"),
    [
        (ToolFormat.HERMES, 'I go.\n<tool_call>\n{"name": "run", "arguments": {"depth": 1}}\n</tool_call>', "I go.", 1),
        (ToolFormat.HERMES, '<tool_call>{"name": "run", "arguments": {"depth"', None, None),
        (ToolFormat.HERMES, '<tool_call>["run"]</tool_call>', None, None),
        (
            ToolFormat.QWEN_XML,
            "<tool_call>\n<function=run>\n<parameter=depth>\n1\n</parameter>\n</function>\n</tool_call>",
            "",
            1,
        ),
        (ToolFormat.LLAMA_JSON, '<|python_tag|>{"name": "run", "parameters": {"depth": 1}}', "", 1),
        (ToolFormat.LLAMA_JSON, '{"depth": 1}', None, None),
        (ToolFormat.NONE, '<tool_call>{"name": "run"}</tool_call>', None, None),
    ],
)
def test_calls_of_tools(form: ToolFormat, text: str, rest: str | None, arguments: Any) -> None:
    content, calls = parse_calls(text, TOOLS, form)
    if rest is None:
        assert (content, calls) == (text, ())
        return
    assert content == rest
    assert [(call.name, json.loads(call.arguments)) for call in calls] == [("run", {"depth": arguments})]


def test_several_calls_and_parameters_that_are_texts() -> None:
    two = '{"name": "a", "parameters": {}}; {"name": "b", "parameters": {"x": 1}}'
    assert [call.name for call in parse_calls(two, TOOLS, ToolFormat.LLAMA_JSON)[1]] == ["a", "b"]
    xml = "<tool_call><function=run><parameter=path>\n1\n</parameter></function></tool_call>"
    assert json.loads(parse_calls(xml, TOOLS, ToolFormat.QWEN_XML)[1][0].arguments) == {"path": "1"}


def test_the_format_is_told_by_the_template(model: Path) -> None:
    assert detect((model / "chat_template.jinja").read_text()) is ToolFormat.HERMES
    assert detect("<tool_call>\n<function=a>\n<parameter=b>") is ToolFormat.QWEN_XML
    assert detect('<|start_header_id|> {"name": f, "parameters": d}') is ToolFormat.LLAMA_JSON
    assert detect("plain") is ToolFormat.NONE


def test_what_is_missing_is_named(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ValueError, match=r"must be 'bytes' or a directory with tokenizer\.json"):
        load_renderer(str(tmp_path))
    (tmp_path / "tokenizer.json").write_bytes((model / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match="has no chat template"):
        load_renderer(str(tmp_path))
    assert load_renderer("bytes").stop_token_ids


def test_a_prompt_has_a_most_before_it_is_tokenised(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_renderer, "MOST_CHARACTERS", 1000)
    assert renderer.render([{"role": "user", "content": "x" * 900}], (), {})
    with pytest.raises(BadRequestError, match=r"messages is '1.* characters'; it must be at most 1000"):
        renderer.render([{"role": "user", "content": "x" * 1000}], (), {})
