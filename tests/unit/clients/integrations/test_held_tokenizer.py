"""The renderer of a tokenizer that a trainer holds, and what the trainer's model tells of its weights."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from callsheet.gateway.renderers.held_tokenizer import renderer_of
from callsheet.integrations.trl.publishing import canary_of, tensors_of, unwrapped
from safetensors.torch import load

from tests.support.hf_models import byte_level_tokenizer, reference_log_probs, seeded_model

MESSAGES = [{"role": "user", "content": "run the tests"}]


def test_it_renders_as_the_tokenizer_does_whatever_that_was_set_to() -> None:
    tokenizer: Any = byte_level_tokenizer()
    tokenizer(["a", "a longer text"], padding=True, truncation=True, max_length=4)
    renderer = renderer_of(tokenizer)
    expected = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert list(renderer.render(MESSAGES, (), {})) == expected
    assert tokenizer.eos_token_id in renderer.stop_token_ids


def test_another_template_and_its_arguments() -> None:
    template = "{% for message in messages %}{{ message.content }}{% if loud %}!{% endif %}{% endfor %}"
    renderer = renderer_of(byte_level_tokenizer(), chat_template=template, template_arguments={"loud": True})
    assert renderer.decode(renderer.render(MESSAGES, (), {})) == "run the tests!"


def test_what_has_no_template_is_refused() -> None:
    class Slow:
        eos_token_id = 1

    slow: Any = Slow()
    with pytest.raises(ValueError, match="must be a fast tokenizer"):
        renderer_of(slow)


def test_a_canary_is_what_the_model_answers() -> None:
    model = seeded_model()
    canary = canary_of(model)
    expected = reference_log_probs(model, canary.prompt_token_ids, canary.token_ids)
    assert len(canary.token_ids) == 8
    assert list(canary.log_probs) == pytest.approx(expected, abs=1e-4)


def test_tensors_that_share_memory_travel_once() -> None:
    weight = torch.ones(2, 3)
    found = load(tensors_of({"embed": weight, "head": weight, "other": torch.ones(2, 3)}))
    assert sorted(found) == ["embed", "other"]


def test_a_model_in_wrappers_is_found() -> None:
    model = torch.nn.Linear(1, 1)
    wrapped = torch.nn.Module()
    wrapped.module = model
    compiled = torch.nn.Module()
    compiled._orig_mod = wrapped
    assert unwrapped(compiled) is model
