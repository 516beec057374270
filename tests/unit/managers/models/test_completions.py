"""What servers of OpenAI's API tell of tokens, and what some of them tell in its place."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import pytest
from callsheet.managers.models.completions import told_tokens


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        (
            {"prompt_tokens": 50, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 30}},
            {"tokens_in": 20, "tokens_cached": 30, "tokens_out": 20},
        ),
        ({"prompt_tokens": 5, "completion_tokens": 2}, {"tokens_in": 5, "tokens_out": 2}),
        ({"prompt_tokens": 5, "prompt_tokens_details": None}, {"tokens_in": 5}),
        ({"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": "many"}}, {"tokens_in": 5}),
        ({"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}, {"tokens_cached": 4}),
        ({"prompt_tokens": -1, "completion_tokens": 1 << 60}, {}),
        ({"prompt_tokens": nan, "completion_tokens": inf}, {}),
        ({"prompt_tokens": [1], "completion_tokens": None, "prompt_tokens_details": [7]}, {}),
        ("a lot", {}),
        (None, {}),
    ],
)
def test_what_makes_no_sense_is_left_out(usage: Any, tokens: dict[str, int]) -> None:
    assert told_tokens({"usage": usage}) == tokens


@pytest.mark.parametrize("completion", [{}, None, [], "text", {"usage": {}}])
def test_nothing_is_told_of_no_usage(completion: Any) -> None:
    assert told_tokens(completion) == {}
