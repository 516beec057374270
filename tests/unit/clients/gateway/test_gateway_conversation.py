"""Conversations of the gateway: prompts keep the tokens of the turn before; samples hold each token once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from callsheet.gateway.chat import ChatRequest, Message, ReplyEnd, Tool
from callsheet.gateway.conversations.conversation import Conversation, HistoryNotReplayedError
from callsheet.gateway.conversations.turns import ConversationTurn, Drift, Generated, GeneratedSpan, to_record
from callsheet.gateway.renderers.byte_renderer import ByteRenderer
from callsheet.managers.inference import tokenizer
from callsheet.v1.names import END_OF_TURN_TOKEN

USER: Message = {"role": "user", "content": "Count."}
TOOLS: tuple[Tool, ...] = ({"type": "function", "function": {"name": "run", "parameters": {}}},)
CALL = '<tool_call>{"name": "run", "arguments": {"b": 1, "a": 2}}</tool_call>'


def conversation(**limits: int) -> Conversation:
    return Conversation(ByteRenderer(), **limits)


def reply(text: str, *, cut: bool = False, version: int = 3) -> Generated:
    tokens = (*text.encode(), *(() if cut else (END_OF_TURN_TOKEN,)))
    log_probs = tuple(-0.5 - place for place in range(len(tokens)))
    return Generated(
        tokens, log_probs, (GeneratedSpan(version, 0, len(tokens)),), ReplyEnd.LENGTH if cut else ReplyEnd.STOP
    )


def say(
    talk: Conversation, messages: Sequence[Message], text: str, *, cut: bool = False, **request: Any
) -> ConversationTurn:
    return talk.commit(talk.prepare(ChatRequest(messages=messages, **request)), reply(text, cut=cut))


def test_the_next_prompt_begins_with_the_old_tokens_whatever_the_harness_did_to_the_text() -> None:
    talk = conversation()
    first = talk.prepare(ChatRequest(messages=[USER], tools=TOOLS))
    sampled = reply(f"<think>hm</think>  I run. {CALL}")
    committed = talk.commit(first, sampled)
    assert (committed.end, committed.message["reasoning_content"]) == (ReplyEnd.TOOL_CALLS, "hm")
    call = committed.message["tool_calls"][0]
    assert call["function"] == {"name": "run", "arguments": '{"b": 1, "a": 2}'}
    # No reasoning, other spaces, other order of keys, another id.
    again = {
        "role": "assistant",
        "content": [{"type": "text", "text": "I run."}],
        "tool_calls": [
            {"id": "x", "type": "function", "function": {"name": "run", "arguments": '{"a":2,"b":1}'}},
        ],
    }
    result = {"role": "tool", "tool_call_id": "x", "content": "ok"}
    second = talk.prepare(ChatRequest(messages=[USER, again, result], tools=TOOLS))
    assert (second.drift, second.parent) == (Drift.CLEAN, 0)
    old = first.token_ids + sampled.token_ids
    assert second.token_ids[: len(old)] == old
    assert tokenizer.decode(second.token_ids[len(old) :]) == "tool\nokassistant\n"


def test_a_cut_reply_gets_the_marker_that_it_lacks() -> None:
    talk = conversation()
    committed = say(talk, [USER], "One, tw", cut=True)
    assert committed.end is ReplyEnd.LENGTH
    prepared = talk.prepare(ChatRequest(messages=[USER, committed.message, {"role": "user", "content": "on"}]))
    assert prepared.token_ids[prepared.kept] == END_OF_TURN_TOKEN
    talk.commit(prepared, reply("o"))
    (sample,) = talk.samples()
    assert sample.loss_mask[prepared.kept] == 0


def test_a_shortened_reply_is_realigned_and_its_lost_tokens_are_not_trained_on() -> None:
    talk = conversation()
    first = talk.prepare(ChatRequest(messages=[USER]))
    talk.commit(first, reply("one two three"))
    messages = [USER, {"role": "assistant", "content": "one two"}, {"role": "user", "content": "on"}]
    second = talk.prepare(ChatRequest(messages=messages))
    assert (second.drift, second.kept) == (Drift.REALIGNED, len(first.token_ids) + len("one two"))
    committed = talk.commit(second, reply("four"))
    assert [message["role"] for message in committed.messages] == ["assistant", "user"]
    (sample,) = talk.samples()
    trained = [token for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask]
    assert trained == [*b"one two", *b"four", END_OF_TURN_TOKEN]
    assert sample.token_ids[: len(second.token_ids)] == second.token_ids


def test_a_reply_that_was_rewritten_forks_and_both_are_trained_on() -> None:
    talk = conversation(max_realigned_tokens=4)
    say(talk, [USER], "one two three")
    messages = [USER, {"role": "assistant", "content": "eins"}, {"role": "user", "content": "on"}]
    prepared = talk.prepare(ChatRequest(messages=messages))
    assert prepared.drift is Drift.FORKED
    assert "turn 0" in prepared.reason
    talk.commit(prepared, reply("zwei"))
    assert sorted(sum(sample.loss_mask) for sample in talk.samples()) == [5, 14]


def test_parallel_calls_make_branches_that_share_a_reply_which_is_trained_on_once() -> None:
    talk = conversation()
    first = say(talk, [USER], "shared")
    branches = [[USER, first.message, {"role": "user", "content": name}] for name in ("left", "right!")]
    prepared = [talk.prepare(ChatRequest(messages=messages)) for messages in branches]
    for one in prepared:
        assert (one.parent, one.drift) == (0, Drift.CLEAN)
        talk.commit(one, reply("done"))
    longest, other = talk.samples()
    assert (longest.turns, other.turns) == ((0, 2), (0, 1))
    assert (sum(longest.loss_mask), sum(other.loss_mask)) == (len("shared") + 1 + len("done") + 1, len("done") + 1)
    start = len(ByteRenderer().render([USER], (), {}))
    assert other.log_probs[start] == longest.log_probs[start] == -0.5
    assert (other.versions[start], other.log_probs[0], other.versions[0]) == (3, None, None)


def test_equal_calls_are_siblings_and_the_newest_is_continued() -> None:
    talk = conversation()
    first, second = (talk.prepare(ChatRequest(messages=[USER])) for _ in range(2))
    message = talk.commit(first, reply("same")).message
    talk.commit(second, reply("same"))
    assert talk.prepare(ChatRequest(messages=[USER, message, USER])).parent == 1


def test_other_tools_or_template_arguments_begin_anew() -> None:
    talk = conversation()
    message = say(talk, [USER], "a").message
    for other in ({"tools": TOOLS}, {"template_arguments": {"enable_thinking": False}}):
        prepared = talk.prepare(ChatRequest(messages=[USER, message, USER], **other))
        assert (prepared.parent, prepared.drift) == (None, Drift.FORKED)


def test_a_conversation_comes_back_from_its_records() -> None:
    talk = conversation()
    records = []
    messages: list[Message] = [USER]
    for number in range(4):
        committed = say(talk, messages, f"reply {number}")
        records.append(json.loads(json.dumps(to_record(committed))))
        messages += [committed.message, {"role": "user", "content": f"on {number}"}]
    restored = Conversation.restore(ByteRenderer(), records)
    assert restored.samples() == talk.samples()
    request = ChatRequest(messages=messages)
    assert restored.prepare(request).token_ids == talk.prepare(request).token_ids
    with pytest.raises(ValueError, match="turn is 1; it must be 0"):
        Conversation.restore(ByteRenderer(), records[1:])


def test_a_harness_that_does_not_repeat_its_history_is_refused_in_the_end() -> None:
    talk = conversation(max_turns=3)
    for number in range(3):
        say(talk, [{"role": "user", "content": f"step {number}"}], "a")
    with pytest.raises(HistoryNotReplayedError, match="3 of them continue no other"):
        talk.prepare(ChatRequest(messages=[USER]))


def test_stop_texts_and_undeclared_tools_in_a_reply() -> None:
    renderer = ByteRenderer()
    assert renderer.parse(b"one STOP two", (), ("STOP",)).content == "one "
    assert renderer.parse(CALL.encode(), ()).tool_calls == ()
    assert renderer.parse(CALL.encode(), TOOLS).tool_calls[0].name == "run"


def test_the_byte_vocabulary_is_the_demo_models() -> None:
    rendered = ByteRenderer().render([USER], TOOLS, {})
    assert rendered[0] == tokenizer.BEGIN_TOKEN
    assert END_OF_TURN_TOKEN == tokenizer.END_OF_TURN_TOKEN
    assert ByteRenderer().stop_token_ids == {tokenizer.END_OF_TURN_TOKEN}
    assert tokenizer.decode(rendered).startswith('tools\n{"name": "run"')
