"""Conversations under any order of calls: samples hold every sampled token with a loss exactly once, as sampled."""

from __future__ import annotations

import json
import random
from typing import Any

from callsheet.gateway.chat import ChatRequest, Message, ReplyEnd
from callsheet.gateway.conversations.canonical import digests
from callsheet.gateway.conversations.conversation import Conversation
from callsheet.gateway.conversations.turns import Drift, Generated, GeneratedSpan, Prepared, to_record
from callsheet.gateway.renderers.byte_renderer import ByteRenderer
from callsheet.v1.names import END_OF_TURN_TOKEN
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.sample_check import EngineCall, differences

REPLIES = st.one_of(
    st.text(max_size=12).map(lambda text: text.encode("utf-8", errors="replace")), st.binary(max_size=12)
)
STEPS = st.lists(
    st.tuples(
        st.integers(0, 6),  # which reply is continued, counted from the newest; beyond the first begins anew
        REPLIES,
        st.booleans(),  # whether it is cut
        st.integers(0, 3),  # how many of its last characters the harness drops
        st.integers(0, 2),  # how many other calls are prepared before it is committed
    ),
    min_size=1,
    max_size=12,
)


class Played:
    """A harness that continues any reply, changed or not, and calls that overlap."""

    def __init__(self) -> None:
        self.talk = Conversation(ByteRenderer())
        self.calls: list[EngineCall] = []
        self.records: list[Any] = []
        self.histories: list[list[Message]] = []
        self.waiting: list[tuple[int, Prepared, Generated, int]] = []

    def step(self, number: int, step: tuple[int, bytes, bool, int, int]) -> None:
        """Prepares one call, and commits those whose time has come."""
        back, reply, cut, dropped, delay = step
        history = self.histories[-1 - back] if back < len(self.histories) else []
        prepared = self.talk.prepare(ChatRequest(messages=[*history, {"role": "user", "content": f"say {number % 3}"}]))
        tokens = (*reply, *(() if cut and reply else (END_OF_TURN_TOKEN,)))
        rng = random.Random(number)
        spans = (GeneratedSpan(number, 0, len(tokens)),)
        generated = Generated(tokens, tuple(rng.random() for _ in tokens), spans, ReplyEnd.LENGTH)
        self.waiting.append((number + delay, prepared, generated, dropped))
        self.settle(number)

    def settle(self, until: int) -> None:
        """Commits what is due."""
        for due in [each for each in self.waiting if each[0] <= until]:
            self.waiting.remove(due)
            _, prepared, generated, dropped = due
            committed = self.talk.commit(prepared, generated)
            self.records.append(json.loads(json.dumps(to_record(committed))))
            version = generated.versions[0].version
            self.calls.append(
                EngineCall(
                    prepared.token_ids,
                    generated.token_ids,
                    generated.log_probs,
                    (version,) * len(generated.token_ids),
                    prepared.drift,
                    prepared.parent,
                )
            )
            content = committed.message["content"]
            sent = {**committed.message, "content": content[: len(content) - dropped]}
            self.histories.append([*prepared.request.messages, sent])


@settings(max_examples=40)
@given(STEPS)
def test_samples_hold_each_sampled_token_once_as_the_engine_saw_it(
    steps: list[tuple[int, bytes, bool, int, int]],
) -> None:
    played = Played()
    for number, step in enumerate(steps):
        played.step(number, step)
    played.settle(len(steps) + 3)
    assert differences(played.calls, played.talk.samples()) == []
    assert Conversation.restore(ByteRenderer(), played.records).samples() == played.talk.samples()
    assert len(played.talk.samples()) <= len(played.calls)


@settings(max_examples=40)
@given(STEPS)
def test_a_clean_prompt_begins_with_all_tokens_of_the_turn_that_it_continues(
    steps: list[tuple[int, bytes, bool, int, int]],
) -> None:
    played = Played()
    for number, step in enumerate(steps):
        played.step(number, (*step[:4], 0))
    for call in played.calls:
        if call.drift is not Drift.REALIGNED and call.parent is not None:
            parent = played.calls[call.parent]
            known = parent.prompt + parent.reply
            assert call.prompt[: len(known)] == known


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.text(max_size=5), JSON, max_size=4), st.text(max_size=20), st.randoms())
def test_what_harnesses_do_to_a_message_makes_no_other_one(
    arguments: dict[str, Any], text: str, rng: random.Random
) -> None:
    def message(written: str, content: object, **more: object) -> Message:
        call = {"id": str(rng.random()), "function": {"name": "run", "arguments": written}}
        return {"role": "assistant", "content": content, "tool_calls": [call], **more}

    shuffled = list(arguments.items())
    rng.shuffle(shuffled)
    one = message(json.dumps(arguments), text, reasoning_content="hm")
    other = message(json.dumps(dict(shuffled), indent=2), [{"type": "text", "text": f" {text}\n"}])
    assert digests([one], (), {}) == digests([other], (), {})
    assert digests([one], (), {}) != digests([message(json.dumps([arguments]), text)], (), {})
