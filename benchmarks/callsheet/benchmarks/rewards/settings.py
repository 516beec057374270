"""How much the rewards benchmark runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from callsheet.options.declaration import AtLeast, Setting, check_least

MOST_MODELS = 9
MOST_LOAD = 10.0


@dataclass(frozen=True, slots=True)
class RewardsBenchSettings:
    """Sizes of the rewards benchmark.

    Attributes:
        zipf: Exponent of the models' popularity.
        questions: Different inputs of each model; more scorings ask them again.
        tokens: Fewest and most tokens of an input.
        tolerance: How far a score may be from that of the model alone.
    """

    scorings: Annotated[int, Setting("Scorings of each policy.", least=1)] = 5_000
    models: Annotated[int, Setting("Models, of different architectures; at most 9.", least=1)] = 9
    model_mib: Annotated[int, Setting("About the size of each.", least=1)] = 220
    room: Annotated[int, Setting("How many of them fit into the memory budget.", least=1)] = 3
    load: Annotated[
        float, Setting("Arriving work, as a share of what a worker does one by one; batches let it do more.")
    ] = 1.2
    blocks: Annotated[int, Setting("Parts of the scorings; policies take turns with each.", least=1)] = 10
    light_scorings: Annotated[int, Setting("Scorings of the run that tells the overhead.", least=0)] = 200
    seed: Annotated[int, Setting("Everything is drawn from it.", least=0)] = 0
    zipf: float = 1.0
    questions: Annotated[int, AtLeast(1)] = 24
    tokens: tuple[int, int] = (4, 12)
    tolerance: float = 1e-4

    def __post_init__(self) -> None:
        """Checks the sizes.

        Raises:
            ValueError: One breaks its rule.
        """
        check_least(self)
        if self.models > MOST_MODELS:
            raise ValueError(f"models: {self.models}: must be at most {MOST_MODELS}")
        if not 0 < self.load <= MOST_LOAD:
            raise ValueError(f"load: {self.load}: must be above 0 and at most {MOST_LOAD}")
