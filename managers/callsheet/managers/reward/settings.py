"""Settings of a reward manager. Imports nothing heavy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from callsheet.managers.models.config import TransformerConfig
from callsheet.managers.models.options import LoadAtFirstUse, Seed, Weights
from callsheet.managers.reward.hosted.settings import HostedSettings
from callsheet.managers.sandbox.settings import SandboxSettings
from callsheet.options.declaration import AtLeast, LeaveOut, Setting, check_least


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """Settings of the scorer of rewards.

    Attributes:
        shape: Shape of a scoring model with random weights; unused when `weights` is given.
        weights: Directory with `config.json` and `weights.pt`; None fills a model of `shape` from `seed`, whose
            scores are numbers without a meaning.
        seed: Seed of random weights.
        slots: The most model scores at once; 0 means no limit but the node's cores.
        load_at_first_use: Load the model with the first request, and import torch no earlier.
        max_batch_tokens: Padded tokens of one forward pass.
    """

    shape: TransformerConfig = field(default_factory=TransformerConfig)
    weights: Weights = None
    seed: Seed = 1
    slots: Annotated[int, AtLeast(0)] = 0
    max_batch_tokens: Annotated[int, AtLeast(1)] = 16_384
    load_at_first_use: LoadAtFirstUse = False

    def __post_init__(self) -> None:
        check_least(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardManagerSettings:
    """Settings of a reward manager.

    Attributes:
        scorer: A small scoring model for tests and the demo; only if no models are hosted.
        hosted: Models that share the memory of devices.
        sandbox: The sandboxes in which test suites run.
    """

    scorer: RewardSettings = field(default_factory=RewardSettings)
    hosted: HostedSettings = field(default_factory=HostedSettings)
    test_suites: Annotated[bool, Setting("Also serve test suites in sandboxes of their own.")] = True
    sandbox: Annotated[SandboxSettings, LeaveOut("network", "provisioning")] = field(default_factory=SandboxSettings)
