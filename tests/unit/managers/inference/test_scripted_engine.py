"""The scripted engine: what it answers, when its script is wrong, and when it has nothing left to say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from callsheet.managers.inference import tokenizer
from callsheet.managers.inference.driver import (
    FinishReason,
    GenerateRequest,
    Generation,
    RequestRefusedError,
    Sampling,
    VersionSpan,
)
from callsheet.managers.inference.engine_kind import ENGINE_KINDS
from callsheet.managers.inference.scripted_engine.answer import made_up_log_prob
from callsheet.managers.inference.scripted_engine.driver import ScriptedEngineDriver
from callsheet.managers.inference.scripted_engine.kind import ScriptedSettings
from callsheet.managers.inference.scripted_engine.script import ScriptError, read_script
from callsheet.managers.inference.scripted_engine.vocabulary import ByteVocabulary, load_vocabulary
from callsheet.managers.inference.settings import InferenceSettings
from callsheet.options.declaration import from_texts

from tests.support.chat_model import END, make_model

pytestmark = pytest.mark.anyio


def engine(*replies: dict[str, object], **script: object) -> ScriptedEngineDriver:
    return ScriptedEngineDriver(read_script(json.dumps({"replies": replies, **script})), ByteVocabulary())


async def ask(driver: ScriptedEngineDriver, text: str, max_new_tokens: int = 100) -> Generation:
    wanted = Sampling(max_new_tokens=max_new_tokens)
    return await driver.generate(GenerateRequest("a", tuple(tokenizer.encode(text)), wanted))


async def test_replies_come_in_order_and_those_with_a_pattern_for_its_prompts_alone() -> None:
    driver = engine(
        {"match": "rain", "text": "wet"}, {"text": "one"}, {"text": "two"}, {"text": "more", "repeat": True}
    )
    texts = [(await ask(driver, prompt)).text for prompt in ("sun", "rain", "rain", "sun", "sun")]
    assert texts == ["one", "wet", "two", "more", "more"]


async def test_a_reply_ends_its_turn_and_has_a_log_probability_for_each_token() -> None:
    said = await ask(engine({"text": "hi"}), "x")
    assert (said.token_ids, said.finish_reason) == ((*b"hi", tokenizer.END_OF_TURN_TOKEN), FinishReason.STOP)
    assert said.log_probs == tuple(made_up_log_prob(token, place) for place, token in enumerate(said.token_ids))
    assert said.version_spans == (VersionSpan(0, 0, 3),)


async def test_a_reply_may_be_cut_by_the_script_and_by_the_request() -> None:
    cut = await ask(engine({"token_ids": [0xF0, 0x9F], "cut": True, "log_probs": [-1, -2]}), "x")
    assert (cut.token_ids, cut.log_probs, cut.finish_reason) == ((0xF0, 0x9F), (-1, -2), FinishReason.LENGTH)
    short = await ask(engine({"text": "hello"}), "x", max_new_tokens=2)
    assert (short.text, short.finish_reason) == ("he", FinishReason.LENGTH)


async def test_versions_of_a_reply() -> None:
    said = await ask(engine({"text": "hey", "versions": [[4, 0, 1], [5, 1, 4]]}), "x")
    assert said.version_spans == (VersionSpan(4, 0, 1), VersionSpan(5, 1, 4))


async def test_a_key_finds_its_reply_again_and_again() -> None:
    driver = engine({"key": "a1", "text": "A"}, {"key": "b2", "text": "B"}, {"text": "none"}, key=r"\[(\w+)\]")
    assert [(await ask(driver, text)).text for text in ("[a1]", "[a1][b2]", "[a1]", "[c]")] == ["A", "B", "A", "none"]


async def test_a_script_that_is_used_up_refuses() -> None:
    driver = engine({"text": "once"})
    await ask(driver, "x")
    with pytest.raises(RequestRefusedError) as refused:
        await ask(driver, "x")
    assert refused.value.reason == "script_exhausted"


async def test_a_script_with_a_tokenizer_of_its_own(tmp_path: Path) -> None:
    make_model(tmp_path, 1)
    vocabulary = load_vocabulary(tmp_path)
    driver = ScriptedEngineDriver(read_script('{"text": "the file"}'), vocabulary)
    said = await driver.generate(GenerateRequest("a", tuple(vocabulary.encode("hello")), Sampling(max_new_tokens=50)))
    assert (said.token_ids, said.text) == ((*vocabulary.encode(f"the file{END}"),), "the file")
    with pytest.raises(ValueError, match=r"must be a directory with tokenizer\.json"):
        load_vocabulary(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "no JSON"),
        ("[]", "replies is empty"),
        ('{"replies": [{}]}', r"replies\[0\] has none; it must have one of text, token_ids, random_tokens"),
        ('[{"text": "a", "token_ids": [1]}]', "must have one of"),
        ('[{"text": 1}]', r"replies\[0\]\.text is 1; it must be a text"),
        ('[{"text": "a", "tokens": 1}]', r"replies\[0\]\.tokens is unknown"),
        ('[{"text": "a", "match": "("}]', "must be a regular expression"),
        ('{"key": "a", "replies": [{"text": "a"}]}', "a pattern with one group"),
        ('[{"text": "a", "delay_s": -1}]', "a number of seconds"),
        ('[{"text": "a", "versions": [[1]]}]', r"must be \[version, begin, end\]"),
        ('[{"random_tokens": 0}]', "at least 1"),
    ],
)
async def test_a_script_that_breaks_a_rule(text: str, message: str) -> None:
    with pytest.raises(ScriptError, match=message):
        read_script(text)


async def test_replies_may_be_lines() -> None:
    assert [reply.text for reply in read_script('{"text": "a"}\n\n{"text": "b"}\n').replies] == ["a", "b"]


async def test_managers_find_it_by_name(tmp_path: Path) -> None:
    kind = ENGINE_KINDS.get("scripted")
    with pytest.raises(ValueError, match="script: none is given"):
        kind.build(ScriptedSettings(), InferenceSettings(engine="scripted"))
    file = tmp_path / "script.json"
    file.write_text("[1]")
    with pytest.raises(ValueError, match=r"script\.json.*replies\[0\] is 1"):
        kind.build(ScriptedSettings(), InferenceSettings(engine="scripted", script=file))
    file.write_text('{"text": "a"}')
    unloaded = kind.build(ScriptedSettings(), InferenceSettings(engine="scripted", script=file))
    assert unloaded.capabilities["engine"] == "scripted"
    assert unloaded.load().capabilities == unloaded.abilities


async def test_requests_and_their_tokens_are_written_down(tmp_path: Path) -> None:
    kind = ENGINE_KINDS.get("scripted")
    script, record = tmp_path / "script.json", tmp_path / "record.jsonl"
    script.write_text('{"text": "hi", "repeat": true, "versions": [[2, 0, 3]]}')
    own = from_texts(kind.settings, (f"record={record}",))
    driver = kind.build(own, InferenceSettings(engine="scripted", script=script)).load()
    said = [await driver.generate(GenerateRequest(name, (65, 66), Sampling(max_new_tokens=9))) for name in ("a", "b")]
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert ([line["request_id"] for line in lines], lines[0]["prompt_token_ids"]) == (["a", "b"], [65, 66])
    assert tuple(lines[0]["token_ids"]) == said[0].token_ids
    assert (tuple(lines[0]["log_probs"]), lines[0]["versions"]) == (said[0].log_probs, [[2, 0, 3]])


async def test_a_script_is_for_the_scripted_engine(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is for engine 'scripted', and engine is 'torch'"):
        InferenceSettings(script=tmp_path)
