"""Legacy completions, as OpenAI's own client reads them."""

from __future__ import annotations

from typing import Any

import pytest
from callsheet.gateway.chat import BadRequestError, ReplyEnd, ReplyToken
from callsheet.gateway.dialects import completions

from tests.support.dialect_answers import DialectAnswers, reply_of

TEXT = "The quick brown fox — ein schneller Fuchs — 狐狸跳过了懒狗 — jumps over the lazy dog.\n" * 2
TOKENS = [ReplyToken(5, "Ja", -0.25), ReplyToken(6, "wohl", -1.5), ReplyToken(7, ".", -0.5)]


def test_client_reads_a_whole_answer() -> None:
    served = DialectAnswers([reply_of(TEXT)])
    answer = served.openai().completions.create(model="policy", prompt="Once", max_tokens=9)
    assert (answer.choices[0].text, answer.choices[0].finish_reason, answer.choices[0].logprobs) == (TEXT, "stop", None)
    assert answer.usage is not None
    assert answer.usage.total_tokens == 18
    assert (served.requests[0].prompt, served.requests[0].sampling.max_tokens) == ("Once", 9)


def test_client_reads_a_stream() -> None:
    served = DialectAnswers([reply_of(TEXT, end=ReplyEnd.LENGTH)])
    asked: Any = {"include_usage": True}
    create = served.openai().completions.create
    *chunks, last = create(model="policy", prompt="Once", stream=True, stream_options=asked)
    assert "".join(chunk.choices[0].text for chunk in chunks) == TEXT
    assert len(chunks) > 3
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.usage is not None


def test_log_probabilities_where_asked_only() -> None:
    served = DialectAnswers([reply_of("Jawohl.", tokens=TOKENS)] * 2)
    create = served.openai().completions.create
    whole = create(model="policy", prompt="Sag ja.", logprobs=1).choices[0].logprobs
    assert whole is not None
    assert (whole.tokens, whole.token_logprobs) == (["Ja", "wohl", "."], [-0.25, -1.5, -0.5])
    assert whole.text_offset == [0, 2, 6]
    chunks = list(create(model="policy", prompt="Sag ja.", logprobs=0, stream=True))
    assert chunks[-1].choices[0].logprobs == whole
    assert all(chunk.choices[0].logprobs is None for chunk in chunks[:-1])


@pytest.mark.parametrize(
    ("prompt", "read"),
    [("Once", "Once"), (["Once"], "Once"), ([1, 0, 3], (1, 0, 3)), ([[1, 2]], (1, 2))],
)
def test_prompts_are_a_text_or_token_ids(prompt: Any, read: Any) -> None:
    assert completions.read({"prompt": prompt}).prompt == read


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"prompt": [1, -2]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"suffix": "end"}, "suffix"),
        ({"logprobs": 5}, "logprobs"),
        ({"best_of": 3}, "best_of"),
    ],
)
def test_refusals_name_the_field(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(BadRequestError) as raised:
        completions.read({"prompt": "Once"} | fields)
    assert raised.value.field == named


def test_errors_raise_the_clients_classes() -> None:
    import openai

    with pytest.raises(openai.BadRequestError, match="echo is True"):
        DialectAnswers().openai().completions.create(model="policy", prompt="Once", echo=True)
