"""GRPO's advantages where samples without a token to train on do not count. verl registers it as callsheet_grpo."""

from __future__ import annotations

from typing import Any, Final

import torch
from verl.trainer.ppo.core_algos import register_adv_est

NAME: Final = "callsheet_grpo"
EPSILON: Final = 1e-6


@register_adv_est(NAME)
def group_advantages(
    token_level_rewards: torch.Tensor,
    response_mask: torch.Tensor,
    index: Any,
    config: Any = None,
    epsilon: float = EPSILON,
    **_: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns advantages and returns, as verl's own GRPO, over those samples of each group that have one.

    Args:
        token_level_rewards: Shape (samples, tokens).
        response_mask: Likewise; all 0 for a sample that is excluded.
        index: The group of each sample.
        config: verl's settings of the algorithm; `norm_adv_by_std_in_grpo` is used.
        epsilon: Keeps the division finite.
    """
    scores = token_level_rewards.sum(dim=-1)
    counts = response_mask.sum(dim=-1) > 0
    by_std = True if config is None else bool(config.get("norm_adv_by_std_in_grpo", True))
    found = torch.zeros_like(scores)
    groups: dict[Any, list[int]] = {}
    for at, group in enumerate(index):
        if bool(counts[at]):
            groups.setdefault(group, []).append(at)
    with torch.no_grad():
        for members in groups.values():
            of = scores[members]
            alone = len(members) == 1
            centred = of if alone else of - of.mean()
            found[members] = centred / (of.std() + epsilon) if by_std and not alone else centred
    advantages = found.unsqueeze(-1) * response_mask
    return advantages, advantages
