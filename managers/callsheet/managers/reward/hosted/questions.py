"""Questions to hosted models, and how they become tokens."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any


class QuestionError(Exception):
    """A question that its model can never answer; `reason` is a stable word."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def conversation(question: dict[str, Any]) -> list[dict[str, str]]:
    """The messages of a text question."""
    messages: list[dict[str, str]] = list(question.get("messages") or ())
    if not messages and question.get("prompt"):
        messages.append({"role": "user", "content": question["prompt"]})
    if question.get("response"):
        messages.append({"role": "assistant", "content": question["response"]})
    return messages


def scored_tokens(question: dict[str, Any], tokenizer: Any) -> list[int]:
    """The tokens of what a classifier scores."""
    if question.get("token_ids"):
        return list(question["token_ids"])
    tokenizer = _needed(tokenizer)
    if tokenizer.chat_template:
        return _templated(tokenizer, conversation(question))
    texts = [message["content"] for message in conversation(question)]
    encoded = tokenizer(*texts) if len(texts) == 2 else tokenizer("\n".join(texts))
    return list(encoded["input_ids"])


def continued_tokens(question: dict[str, Any], tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens before what a teacher looks at, and those that it looks at.

    Raises:
        QuestionError: It could tell no log-probability: that of a first token is known to nobody.
    """
    before, tokens = _continued(question, tokenizer)
    if not tokens or len(before) + len(tokens) < 2:
        raise QuestionError("no_tokens", "there must be at least one token to look at, with a token before it")
    return before, tokens


def _continued(question: dict[str, Any], tokenizer: Any) -> tuple[list[int], list[int]]:
    if question.get("token_ids"):
        return list(question.get("prompt_token_ids") or ()), list(question["token_ids"])
    tokenizer = _needed(tokenizer)
    before = conversation({**question, "response": ""})
    if tokenizer.chat_template:
        prompt = _templated(tokenizer, before, add_generation_prompt=True)
    else:
        prompt = list(tokenizer("\n".join(message["content"] for message in before))["input_ids"])
    return prompt, list(tokenizer(question["response"], add_special_tokens=False)["input_ids"])


def judged_text(question: dict[str, Any]) -> str:
    """Returns the text of a question to a judge, before any template."""
    parts = [question["rubric"], *(f"{each['role']}:\n{each['content']}" for each in conversation(question))]
    return "\n\n".join(parts)


def judged_tokens(question: dict[str, Any], tokenizer: Any) -> list[int]:
    """Returns the tokens of a question to a judge."""
    tokenizer = _needed(tokenizer)
    text = judged_text(question)
    if tokenizer.chat_template:
        return _templated(tokenizer, [{"role": "user", "content": text}], add_generation_prompt=True)
    return list(tokenizer(text)["input_ids"])


def read_judgement(text: str, score_pattern: str, unfinished: str = "") -> dict[str, Any]:
    """The score in a judge's answer: the first group of the last match after its thoughts.

    Args:
        text: The answer.
        score_pattern: Finds the score.
        unfinished: Why the text is not the whole answer; empty if it is.
    """
    said = text.rpartition("</think>")[2]
    problem = unfinished or ("" if said.strip() else "it is empty")
    if problem:
        return {"no_verdict": f"the judge's answer is no verdict: {problem}", "text": text}
    found = re.findall(score_pattern, said)
    number = found[-1][0] if found and isinstance(found[-1], tuple) else found[-1] if found else ""
    try:
        score = float(number)
    except ValueError:
        score = math.nan
    if not math.isfinite(score):
        return {"problem": "score_missing", "message": "the judge's answer has no score", "text": text}
    return {"score": score, "text": text}


def check_tokens(tokens: Sequence[int], vocabulary: int | None, context: int | None) -> None:
    """Refuses tokens that a model cannot take.

    Raises:
        QuestionError: There are none, too many, or unknown ones.
    """
    if not tokens:
        raise QuestionError("no_tokens", "there must be at least one token")
    highest = max(tokens)
    if min(tokens) < 0 or (vocabulary is not None and highest >= vocabulary):
        rule = "at least 0" if vocabulary is None else f"at least 0 and below {vocabulary}"
        raise QuestionError("token_out_of_vocabulary", f"tokens {min(tokens)} to {highest}: must be {rule}")
    if context is not None and len(tokens) > context:
        raise QuestionError("prompt_too_long", f"{len(tokens)} tokens: must be at most {context}, the model's context")


def _needed(tokenizer: Any) -> Any:
    if tokenizer is None:
        raise QuestionError("no_tokenizer", "the model's directory has no tokenizer: send token ids")
    return tokenizer


def _templated(tokenizer: Any, messages: list[dict[str, str]], **options: Any) -> list[int]:
    try:
        encoded = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, **options)
    except Exception as error:  # A template is a program of the model's author, and raises what it likes.
        raise QuestionError("bad_messages", f"the model's chat template refuses them: {error}") from error
    return list(encoded["input_ids"])
