"""The demo's conversations as tokens."""

from __future__ import annotations

import random

from callsheet.benchmarks.demo.scripted import OBSERVATION_LIMIT, PROMPT_LIMIT, DemoConversation, thinking_tokens
from callsheet.managers.inference import tokenizer


def test_a_conversation_is_what_was_said_in_order() -> None:
    conversation = DemoConversation("Fix it.\n")
    conversation.add_thinking([104, 109])
    conversation.add_text("$ ls\n")
    assert tokenizer.decode(conversation.prompt()) == "Fix it.\nhm$ ls\n"
    assert conversation.token_ids == conversation.prompt()
    assert conversation.prompt()[0] == tokenizer.BEGIN_TOKEN
    assert conversation.prompt()[-1] == tokenizer.END_OF_TURN_TOKEN


def test_a_long_observation_keeps_its_head_and_its_tail() -> None:
    conversation = DemoConversation("")
    conversation.add_text("head" + "x" * 10_000 + "tail")
    text = tokenizer.decode(conversation.prompt())
    assert len(text) < OBSERVATION_LIMIT + 10
    assert (text[:4], text[-4:]) == ("head", "tail")


def test_prompts_are_bounded_and_mostly_extend_the_one_before() -> None:
    conversation = DemoConversation("Fix it.\n")
    before: list[int] = []
    extended = 0
    for number in range(100):
        conversation.add_text(f"{number} " * 30)
        prompt = conversation.prompt()
        assert len(prompt) <= PROMPT_LIMIT
        assert tokenizer.decode(prompt).startswith("Fix it.\n")
        extended += prompt[: len(before)] == before
        before = prompt
    assert extended > 80


def test_thinking_is_heavy_tailed_within_bounds() -> None:
    rng = random.Random(1)
    drawn = sorted(thinking_tokens(rng) for _ in range(2000))
    assert (drawn[0], drawn[-1]) == (8, 200)
    assert 35 < drawn[1000] < 45
