"""The three tasks of hosted models: a score, log-probabilities, a judgement. Runs in a worker."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from inspect import signature
from typing import Any

import torch
from callsheet.managers.reward.batches import plan_batches
from callsheet.managers.reward.hosted.model_spec import ModelSpec, ModelTask
from callsheet.managers.reward.hosted.questions import (
    QuestionError,
    check_tokens,
    continued_tokens,
    judged_tokens,
    read_judgement,
    scored_tokens,
)
from callsheet.managers.reward.hosted.skeleton import ModelSkeleton

# Logits of a batch that are computed at once.
_MOST_LOGITS = 8 << 20
_CANARY_TOKENS = 8

Answer = dict[str, Any]


class AnsweringModel:
    """An opened model: its modules, its tokenizer and its task. Computes only while its weights are bound."""

    def __init__(self, spec: ModelSpec, skeleton: ModelSkeleton, tokenizer: Any, device: str) -> None:
        """Checks that the head is as the spec says.

        Raises:
            ValueError: It is not.
        """
        self.skeleton = skeleton
        self._spec = spec
        self._tokenizer = tokenizer
        self._device = device
        text = skeleton.config.get_text_config()
        self._vocabulary = int(text.vocab_size)
        self._context: int | None = _context(text)
        self._keeps_logits = "logits_to_keep" in signature(skeleton.model.forward).parameters
        labels = int(getattr(skeleton.config, "num_labels", 1))
        self._label = spec.label if spec.label is not None else 0
        if spec.kind is ModelTask.CLASSIFY and (self._label >= labels or (labels > 1 and spec.label is None)):
            raise ValueError(f"label: {spec.label}: must be given, from 0 to {labels - 1}, the labels of the head")

    def use(self, device: str) -> None:
        """Computes on a device from now on."""
        self._device = device

    def canary(self) -> list[float]:
        """Returns the model's answer to a fixed input: any change of the weights shows in it."""
        # Spread over the vocabulary, so that many rows of the embedding count.
        tokens = [(index * 7919 + 11) % self._vocabulary for index in range(_CANARY_TOKENS)]
        with torch.inference_mode():
            logits = self._forward([tokens])[0].float()
        last = logits if logits.dim() == 1 else logits[-1]
        return [float(last.max()), float(last.min()), float(last.mean()), float(last.logsumexp(0))]

    def answer(self, questions: Sequence[dict[str, Any]], max_tokens: int) -> list[Answer]:
        """The answer to each question, or why there can be none."""
        answers: list[Answer | None] = [None] * len(questions)
        prepared: list[tuple[int, list[int], list[int]]] = []
        for index, question in enumerate(questions):
            try:
                prepared.append((index, *self._prepare(question)))
            except QuestionError as error:
                answers[index] = {"problem": error.reason, "message": str(error)}
        answering = {
            ModelTask.CLASSIFY: self._scores,
            ModelTask.TEACHER: self._log_probs,
            ModelTask.JUDGE: self._judgements,
        }[self._spec.kind]
        with torch.inference_mode():
            for batch in plan_batches([len(before) + len(after) for _, before, after in prepared], max_tokens):
                chosen = [prepared[number] for number in batch]
                for (index, before, after), answer in zip(chosen, _within_memory(answering, chosen), strict=True):
                    computed = {} if "out_of_memory" in answer else {"tokens_in": len(before) + len(after)}
                    answers[index] = {**answer, "tokens": computed | answer.get("tokens", {})}
        return [answer for answer in answers if answer is not None]

    def _prepare(self, question: dict[str, Any]) -> tuple[list[int], list[int]]:
        """The tokens before what is looked at, and those that are looked at."""
        before: list[int] = []
        if self._spec.kind is ModelTask.CLASSIFY:
            tokens = scored_tokens(question, self._tokenizer)
        elif self._spec.kind is ModelTask.TEACHER:
            before, tokens = continued_tokens(question, self._tokenizer)
        else:
            tokens = judged_tokens(question, self._tokenizer)
        check_tokens([*before, *tokens], self._vocabulary, self._context)
        return before, tokens

    def _scores(self, batch: Sequence[tuple[int, list[int], list[int]]]) -> list[Answer]:
        logits = self._forward([tokens for _, _, tokens in batch]).float()
        scores = logits[:, self._label].tolist()
        return [
            {"score": score} if math.isfinite(score) else {"garbage": f"the model's score is {score}"}
            for score in scores
        ]

    def _log_probs(self, batch: Sequence[tuple[int, list[int], list[int]]]) -> list[Answer]:
        return [self._log_probs_of(before, after) for _, before, after in batch]

    def _log_probs_of(self, before: list[int], after: list[int]) -> Answer:
        """One sequence: only the logits that are asked for are computed, as a vocabulary is wide."""
        tokens = torch.tensor([[*before, *after]], device=self._device)
        wanted = tokens[0, len(before) or 1 :]
        hidden_from = max(len(before) - 1, 0)
        kept = tokens.shape[1] - hidden_from
        options = {"logits_to_keep": kept} if self._keeps_logits else {}
        logits = self.skeleton.model(tokens, **options).logits[0, -kept:-1]
        values: list[float] = []
        rows = max(1, _MOST_LOGITS // self._vocabulary)
        for begin in range(0, len(wanted), rows):
            part = logits[begin : begin + rows].float()
            chosen = part.gather(1, wanted[begin : begin + rows, None])[:, 0]
            values += (chosen - part.logsumexp(1)).tolist()
        if not all(map(math.isfinite, values)):
            return {"garbage": "a log-probability is not finite"}
        return {"score": math.fsum(values), "log_probs": values, "token_ids": after[len(after) - len(values) :]}

    def _judgements(self, batch: Sequence[tuple[int, list[int], list[int]]]) -> list[Answer]:
        return [self._judgement(tokens) for _, _, tokens in batch]

    def _judgement(self, tokens: list[int]) -> Answer:
        given = torch.tensor([tokens], device=self._device)
        room = self._spec.max_new_tokens
        if self._context is not None:
            room = min(room, self._context - len(tokens))
        if room < 1:
            return {"problem": "prompt_too_long", "message": f"{len(tokens)} tokens leave no room for an answer"}
        made = self.skeleton.model.generate(
            given, attention_mask=torch.ones_like(given), do_sample=False, num_beams=1, max_new_tokens=room
        )
        answer = made[0, len(tokens) :]
        ends = self.skeleton.model.generation_config.eos_token_id
        cut = len(answer) == room and int(answer[-1]) not in (ends if isinstance(ends, list) else [ends])
        text = self._tokenizer.decode(answer, skip_special_tokens=True)
        return read_judgement(text, self._spec.score_pattern, f"it was cut at {room} tokens" * cut) | {
            "tokens": {"tokens_out": len(answer)}
        }

    def _forward(self, sequences: list[list[int]]) -> torch.Tensor:
        longest = max(map(len, sequences))
        pad = getattr(self.skeleton.config.get_text_config(), "pad_token_id", None) or 0
        padded = [[*tokens, *([pad] * (longest - len(tokens)))] for tokens in sequences]
        mask = [[1] * len(tokens) + [0] * (longest - len(tokens)) for tokens in sequences]
        given = torch.tensor(padded, device=self._device)
        logits: torch.Tensor = self.skeleton.model(
            input_ids=given, attention_mask=torch.tensor(mask, device=self._device)
        ).logits
        return logits


def _context(text: Any) -> int | None:
    """The most tokens of a model; None if its configuration does not say. RoBERTa counts from its padding."""
    most = getattr(text, "max_position_embeddings", None)
    if most is None:
        return None
    if "roberta" in text.model_type:
        return int(most) - int(text.pad_token_id or 0) - 1
    return int(most)


_Batch = Sequence[tuple[int, list[int], list[int]]]


def _within_memory(answering: Callable[[_Batch], list[Answer]], batch: _Batch) -> list[Answer]:
    """Answers a batch, in halves where it takes too much memory; a question that does so alone has no answer."""
    try:
        return answering(batch)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    if len(batch) == 1:
        return [{"out_of_memory": "it takes more memory than there is beside the weights"}]
    middle = len(batch) // 2
    return [*_within_memory(answering, batch[:middle]), *_within_memory(answering, batch[middle:])]


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an exception shows that memory is used up."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
