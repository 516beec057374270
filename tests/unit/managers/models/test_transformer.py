from __future__ import annotations

import math

import pytest
import torch
from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.transformer import (
    LanguageModel,
    RootMeanSquareNorm,
    ScoringModel,
    initialise,
    rotate,
    rotation_table,
)

from tests.support.torch_models import SMALL, prompt, small_model


def test_rotation_leaves_length_and_relative_angle() -> None:
    table = rotation_table(SMALL)
    first, second = torch.randn(2, SMALL.head_width, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(rotate(first, table[7]).norm(), first.norm())

    def product(begin: int, end: int) -> float:
        return float(rotate(first, table[begin]) @ rotate(second, table[end]))

    assert product(3, 10) == pytest.approx(product(103, 110), abs=1e-4)
    assert product(3, 10) != pytest.approx(product(3, 11), abs=1e-4)


def test_rotation_is_the_textbook_one() -> None:
    config = TransformerConfig(width=4, heads=1)
    turned = rotate(torch.tensor([1.0, 0.0, 0.0, 2.0]), rotation_table(config)[5])
    second = 5 / config.rotary_base**0.5
    expected = [math.cos(5), math.sin(5), -2 * math.sin(second), 2 * math.cos(second)]
    assert turned.tolist() == pytest.approx(expected, abs=1e-6)


def test_norm_gives_unit_mean_square() -> None:
    rows = RootMeanSquareNorm(16, 1e-9)(torch.randn(3, 16, generator=torch.Generator().manual_seed(0)) * 40)
    assert rows.square().mean(-1).tolist() == pytest.approx([1, 1, 1], rel=1e-5)


def test_attention_is_causal() -> None:
    model = small_model()
    tokens = torch.tensor([prompt(20)])
    changed = tokens.clone()
    changed[0, 12] = (changed[0, 12] + 1) % 256
    before, after = model(tokens)[0], model(changed)[0]
    assert torch.allclose(before[:12], after[:12], atol=1e-6)
    assert not torch.allclose(before[12:], after[12:], atol=1e-3)


def test_attention_reaches_back() -> None:
    model = small_model()
    tokens = torch.tensor([prompt(20)])
    changed = tokens.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 256
    assert not torch.allclose(model(tokens)[0, -1], model(changed)[0, -1], atol=1e-4)


def test_same_seed_same_weights() -> None:
    one, same, other = small_model(3), small_model(3), small_model(4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    assert not torch.equal(one.head.weight, other.head.weight)


def test_random_weights_do_not_give_a_uniform_distribution() -> None:
    assert 0.5 < float(small_model()(torch.tensor([prompt(50)])).std()) < 3


def test_padding_does_not_change_a_score() -> None:
    model = ScoringModel(SMALL)
    initialise(model, 0)
    model.eval().requires_grad_(False)
    short, long = prompt(9, 1), prompt(30, 2)
    batch = torch.tensor([[*short, *([5] * 21)], [*long]])
    together = model(batch, torch.tensor([9, 30])).tolist()
    alone = [float(model(torch.tensor([tokens]), torch.tensor([len(tokens)]))) for tokens in (short, long)]
    assert together == pytest.approx(alone, abs=1e-5)
    assert abs(alone[0] - alone[1]) > 1e-3


def test_kv_bytes_per_token() -> None:
    assert TransformerConfig(layers=3, width=128).kv_bytes_per_token == 3 * 2 * 128 * 4


@pytest.mark.parametrize(
    ("field", "value"), [("layers", 0), ("heads", -1), ("width", 100), ("norm_epsilon", 0.0), ("context_length", 1.5)]
)
def test_bad_shapes_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        LanguageModel(TransformerConfig(**{field: value}))  # type: ignore[arg-type]
