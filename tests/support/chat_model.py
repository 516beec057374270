"""A tokenizer with merges and a chat template that strips old reasoning, made on the spot."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE: Final = 900
"""Tokens, of which more than 600 come from merges."""

START: Final = "<|start|>"
END: Final = "<|end|>"
TEXT_END: Final = "<|text_end|>"
_SPECIAL: Final = (TEXT_END, START, END)
_MARKERS: Final = ("<think>", "</think>", "<tool_call>", "</tool_call>")

CHAT_TEMPLATE: Final = """\
{%- set last = namespace(user=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set last.user = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- if tools -%}
{{- '<|start|>tools\\n' -}}
{%- for tool in tools -%}{{- tool.function | tojson -}}{{- '\\n' -}}{%- endfor -%}
{{- '<|end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
{{- '<|start|>' + message.role + '\\n' -}}
{%- if message.role == 'assistant' -%}
{%- if message.reasoning_content and loop.index0 > last.user -%}
{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' -}}
{%- endif -%}
{{- message.content | trim -}}
{%- for call in message.tool_calls or [] -%}
{{- '\\n<tool_call>\\n' + ({'name': call.function.name, 'arguments': call.function.arguments} | tojson) -}}
{{- '\\n</tool_call>' -}}
{%- endfor -%}
{%- else -%}
{{- message.content -}}
{%- endif -%}
{{- '<|end|>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start|>assistant\\n' -}}{%- endif -%}
"""
"""Qwen 3 and others strip reasoning in this way: what came before the last question of the user is not rendered."""


def make_model(directory: Path, seed: int) -> None:
    """Writes a tokenizer, trained on made-up text, and its template, as models of Hugging Face have them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len(_MARKERS),
        special_tokens=list(_SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(seed), trainer)
    tokenizer.add_tokens([AddedToken(marker, normalized=False, special=False) for marker in _MARKERS])
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"eos_token": END, "pad_token": TEXT_END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(CHAT_TEMPLATE)


def words(rng: random.Random, count: int) -> str:
    """Returns made-up prose, with code, numbers and characters of several bytes among it."""
    return " ".join(rng.choice(_WORDS) for _ in range(count))


def _corpus(seed: int) -> Iterator[str]:
    rng = random.Random(seed)
    for _ in range(2000):
        yield words(rng, 12)
        yield json.dumps({"name": rng.choice(_WORDS), "arguments": {rng.choice(_WORDS): rng.randrange(1000)}})


def _made_up() -> list[str]:
    rng = random.Random(7)
    syllables = ["ka", "ren", "to", "li", "mor", "an", "des", "phi", "qu", "str", "ing", "tion", "er", "us", "o"]
    return ["".join(rng.choice(syllables) for _ in range(rng.randint(1, 4))) for _ in range(250)]


_PLAIN: Final = "the file test error return def print for in range line run ls -la cat grep self value"
_WIDE: Final = "naïve Größe 東京 データ привет 🙂 👩‍🚀 ½ … —"
_WORDS: Final = [*_made_up(), *_PLAIN.split(), *_WIDE.split()]
